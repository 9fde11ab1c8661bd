"""The report is one valid, self-contained page for every event log, also of unfinished comparisons."""

import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from gradhomog.errors import ConfigError
from gradhomog.experiments.analysis.summary import summarize
from gradhomog.experiments.report import page
from gradhomog.experiments.report.page import render_page, write_report
from gradhomog.experiments.report.tables import run_table
from gradhomog.experiments.results.records import records as read_records
from tests.experiments.run_helpers import write_comparison
from tests.experiments.synthetic_records import METHODS, comparison, result, start

pytestmark = pytest.mark.slow

TEMPLATES = Path(page.__file__).parent / "templates"
SHOWN = ["plain", "static (tuned)", "pcgrad", "isi + rotate + reweight(beta=1.5)"]
VOID = {"meta", "br", "link", "img"}
HIDDEN = {"style", "script"}


class Page(HTMLParser):
    """Check that elements are nested, and collect visible text, references and identifiers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.code: list[str] = []
        self.text = ""
        self.script = ""
        self.policies: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "pre":
            self.code.append("")
        if ("http-equiv", "Content-Security-Policy") in attributes:
            self.policies.append(dict(attributes)["content"])
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name in ("src", "href", "xlink:href"):
                self.references.append(value)
            elif value and "url(" in value:
                self.references.append(value.split("url(")[1].split(")")[0])

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not HIDDEN & set(self.open):
            self.text += data
        if "script" in self.open:
            self.script += data
        if "pre" in self.open:
            self.code[-1] += data


def report(folder, records):
    write_comparison(folder, records)
    summary = write_report(folder)
    return summary, Page((folder / "report.html").read_text(encoding="utf-8"))


def failed(run, error):
    return {"event": "failed", "run": run, "learner": "maml", "label": "m", "role": "compare", "error": error}


def rendered(records):
    """The page of records that are not in a folder."""
    return Page(render_page(summarize(records), records, {}))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, *report(folder, comparison(SHOWN, seeds=2))


def test_all_figures_with_data_are_written(finished):
    folder, summary, _ = finished
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    names = {path.as_posix() for path in paths if path.parts[0] != "runs"}
    drawn = ("scores", "conflict", "stages", "weights", "validation")
    pictures = {f"figures/{name}.{ending}" for name in drawn for ending in ("svg", "png")}
    assert names == {".lock", "plan.json", "manifest.json", "summary.csv", "report.html", *pictures}
    assert summary.finished_runs == summary.expected_runs == 8


def test_the_page_loads_no_external_resource(finished):
    _, _, page = finished
    assert not page.tags & {"link", "img", "iframe", "object"}
    assert page.references
    assert all(reference.startswith("#") for reference in page.references)
    assert [content for content in page.policies if content.startswith("default-src 'none';")]


def test_the_only_script_is_the_one_of_the_template(finished):
    _, _, page = finished
    assert page.tags >= {"script"}
    assert page.script.strip() == (TEMPLATES / "sort.js").read_text(encoding="utf-8").strip()


def test_every_reference_within_the_page_has_exactly_one_target(finished):
    _, _, page = finished
    assert len(page.ids) == len(set(page.ids))
    assert {reference[1:] for reference in page.references} <= set(page.ids)


def test_table_findings_candidates_and_versions_are_on_the_page(finished):
    _, summary, page = finished
    for row in summary.rows:
        assert f"{100 * row.score.mean:.2f} ± {100 * row.score.half_width:.2f}" in page.text
        if row.to_baseline is not None:
            assert f"{100 * row.to_baseline.difference.mean:+.2f} ± " in page.text
            assert f"{row.to_baseline.seeds_needed}" in page.text
    for text in ("8 of 8 runs finished", "static(seed=2)", "chosen", "2.13.0", "Differences are paired by seed"):
        assert text in page.text


def test_the_table_of_runs_has_every_run_once_with_its_scores_and_its_folder(finished):
    folder, summary, page = finished
    records = read_records(folder)
    rows = run_table(summary, records).texts[1:]
    results = {record["run"]: record for record in records if record["event"] == "result"}
    assert len(rows) == len(results) == 9  # 4 methods with 2 seeds, and the candidate that was not chosen
    for row in rows:
        record = results[row[-1].removeprefix("runs/")]
        assert row[1:3] == [record["homogenizers"], str(record["seed"])]
        assert row[3].startswith(f"{100 * sum(record['scores']) / len(record['scores']):.2f} ± ")
        assert row[4] == f"{100 * record['validation']:.2f}"
        assert row[-1] in page.text
    assert rows[-1][1] == "static(seed=2)"


def test_the_error_of_a_run_that_failed_is_on_the_page():
    page = rendered([start(["plain", "m"], seeds=1), result("plain", 0, [0.5, 0.7]), failed("maml-m-s0", "no\nluck")])
    assert "maml-m-s0 failed" in " ".join(page.text.split())
    assert "no\nluck" in page.code


def test_the_configuration_on_the_page_is_toml_of_the_configuration_that_ran(finished):
    _, _, page = finished
    command, config = page.code[-2:]
    assert command == "pip install 'gradhomog[plot]==0.1.0'\ngradhomog compare run.toml"
    assert tomllib.loads(config) == start(SHOWN, seeds=2)["config"]


def test_writing_the_report_again_gives_the_same_bytes(tmp_path):
    report(tmp_path, comparison(METHODS[:2], seeds=1, steps=3))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write_report(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_every_text_of_the_log_is_escaped():
    evil = "<script>alert('&')</script>"
    first = start(["plain", evil], seeds=1)
    first["config"]["note"] = evil
    first["versions"][evil] = evil
    first["machine"]["system"] = evil
    more = {"tuned_from": [evil], "chosen": evil}
    records = [first, result("plain", 0, [0.5, 0.7], domains=[evil, "b"])]
    records += [result(evil, 0, [0.6, 0.7], domains=[evil, "b"], **more)]
    records.append(result(evil, 0, [0.6, 0.7], run="c", role="candidate"))
    records.append(failed(evil, evil))
    page = rendered(records)
    assert "alert" not in page.script
    assert page.text.count(evil) >= 8


@pytest.mark.parametrize("count", [0, 1, 40, 120])
def test_the_report_of_a_truncated_log_has_the_number_of_missing_runs(tmp_path, count):
    records = comparison(METHODS[:3], seeds=3)[: count + 1]
    finished = sum(record["event"] == "result" and record["role"] == "compare" for record in records)
    summary, page = report(tmp_path, records)
    assert summary.finished_runs == finished
    assert f"{finished} of 9" in page.text


def test_a_folder_without_a_plan_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match=r"plan\.json.*gradhomog compare"):
        write_report(tmp_path)


def test_reporting_imports_neither_torch_nor_pyplot():
    # A process, which has imported nothing before.
    code = (
        "import sys, gradhomog.experiments.report.page, gradhomog.experiments.report.figures.style as style\n"
        "assert not {'torch', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "with style.figure_style(): pass\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

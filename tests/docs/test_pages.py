"""Examples on pages run, links have targets, and tables agree with the program."""

import argparse
import importlib
import inspect
import math
import re
import tomllib
import typing
from collections.abc import Iterator

import pytest

from gradhomog import cli, testing
from gradhomog.cli import list_
from gradhomog.experiments.reproduce.comparisons import Settings, planned_comparisons
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.experiments.suite.problems import problems
from gradhomog.experiments.suite.row_files import stored_results
from gradhomog.experiments.suite.scores import Scores
from gradhomog.testing import pytest_plugin
from gradhomog.testing.check_results import MARKS, Outcome
from gradhomog_data.benchmarks import BENCHMARKS, MULTI_TASK, RULES
from tests.docs import pages
from tests.docs.language import ROOT

DOCS = ROOT / "docs"
GENERATED = {  # by the site
    *(DOCS / "methods" / f"{name}.md" for name in [*pages.built_in("homogenizers"), "properties"]),
    *(DOCS / "reference" / f"{name}.md" for name in ("python", "learners", "domains", "observers", "checks")),
    *(DOCS / "results" / "suite" / f"{name}.md" for name in ["leaderboard", *problems()]),
}
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page not in GENERATED and page.parent.name != "python"),
]


def blocks(page, language):
    return pages.blocks(page.read_text(encoding="utf-8"), language)


REQUIRED = {"transformers.md": "accelerate", "lora.md": "peft"}
"""Packages of frameworks without which the examples of a page cannot run."""
EXAMPLES = [(page, index) for page in PAGES for index in range(len(blocks(page, "python")))]


@pytest.mark.usefixtures("without_figures")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT reads it
@pytest.mark.parametrize(("page", "index"), EXAMPLES, ids=[f"{page.name}-{index}" for page, index in EXAMPLES])
def test_a_python_example_runs_after_those_before_it(page, index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.name in REQUIRED:
        pytest.importorskip(REQUIRED[page.name], reason=f"needs the extra of {page.name}")
    names: dict[str, object] = {"__name__": "example"}
    # An example may use what an earlier one on its page made.
    before = blocks(page, "python")[:index] if page.name == "domains.md" else []
    for source in [*before, blocks(page, "python")[index]]:
        source = re.sub(r"for (step|i) in range\(\d+\)", r"for \1 in range(3)", source)  # fewer steps and tasks
        exec(compile(source, f"{page.name}, example {index + 1}", "exec"), names)


def test_links_between_pages_have_targets():
    missing = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", pages.prose(page.read_text(encoding="utf-8"))):
            path = (page.parent / target).resolve()
            if not target.startswith("http") and path not in GENERATED and not path.exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert missing == []


def test_the_guide_lists_every_key_of_the_run_file_with_its_default():
    (page,) = [page for page in PAGES if page.name == "run-file.md"]
    assert tomllib.loads(blocks(page, "toml")[0]) == Config().to_dict()


def test_the_guide_lists_every_default_that_differs_without_domains():
    (page,) = [page for page in PAGES if page.name == "run-file.md"]
    general, first = (tomllib.loads(block) for block in blocks(page, "toml")[:2])
    assert first == {
        key: {inner: value for inner, value in found.items() if value != general[key][inner]}
        if isinstance(found, dict)
        else found
        for key, found in load().to_dict().items()
        if found != general[key]
    }


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_the_readme_prints_the_report_below_it(capsys):
    """Equal words; losses and weights within a tenth, norms and cosines of the last step within a factor of three.

    200 steps amplify the rounding of other processors.
    """
    example = pages.blocks(README, "python")[0]
    exec(example, {"__name__": "example"})
    number = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
    printed, shown = capsys.readouterr().out, pages.blocks(README, "text")[0]
    assert number.sub("#", printed) == number.sub("#", shown)
    found, expected = ([*map(float, number.findall(text))] for text in (printed, shown))
    stable = len(number.findall(shown.partition("norms")[0]))
    assert found[:stable] == pytest.approx(expected[:stable], rel=0.1)
    assert all(1 / 3 < value / other < 3 for value, other in zip(found[stable:], expected[stable:], strict=True))
    plain = {"__name__": "example"}
    exec(example.replace('"auto"', '"none"'), plain)
    assert f"stays at {plain['losses']['quality']:.2f}" in README


def test_the_readme_is_short():
    prose = pages.prose(README)
    assert len(README.splitlines()) <= 120
    assert len(prose.split()) <= 650
    assert [line for line in prose.splitlines() if len(line) > 100 and not line.startswith("|")] == []


def test_the_plugin_of_the_readme_is_that_of_the_tutorial():
    plugin = pages.blocks(README, "python")[1]
    assert plugin in pages.text("guide/write-a-homogenizer.md")
    assert len(plugin.splitlines()) == 11


def test_the_committed_table_of_methods_is_that_of_the_code():
    table = importlib.import_module("_site.method_table").table()
    assert pages.text("methods/table.md") == table, "run: PYTHONPATH=docs python -m _site.method_table"


def test_the_page_of_methods_has_the_needs_of_their_tiers():
    rows = re.findall(r"^\| ([^|]+) \| ((?:\[`[^|]+)) \|[^|]*\|$", pages.text("methods/index.md"), re.MULTILINE)
    assert {need: re.findall(r"/(\w+)\.py\)", names) for need, names in rows} == list_.tiers()["for_a_need"]


def test_the_page_of_methods_has_the_scores_of_the_recommended_ones():
    scores = {score.method: score for score in Scores(stored_results(), list(problems().values())).scores()}
    page = pages.text("methods/index.md")
    assert re.findall(r"(\d+) %", README) == [f"{100 * scores[name].misscaled:.0f}" for name in ("plain", "auto")]
    for method in ["plain", *list_.tiers()["recommended"].values()]:
        score = scores[method]
        numbers = [score.misscaled, score.worst_misscaled, score.regret]
        cells = " | ".join("" if math.isnan(number) else f"{100 * number:.0f} %" for number in numbers)
        name = "the plain mean" if method == "plain" else f"[`{method}`]"
        [row] = [line for line in page.splitlines() if line.startswith(f"| {name}")]
        assert " ".join(row.split()).endswith(" ".join(f"| {cells} | {score.time:.2f} |".split())), row


def test_the_page_of_installation_has_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = pages.text("guide/install.md").split("|---|---|")[1]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert listed == {*extras}


def test_the_list_of_decisions_has_each_with_its_title():
    titles = {path.name: path.read_text("utf-8").splitlines()[0][2:] for path in (DOCS / "decisions").glob("0*.md")}
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", pages.text("decisions/index.md"), re.MULTILINE)
    assert [(title, name) for name, title in sorted(titles.items())] == listed


def test_the_page_of_the_suite_has_its_number_of_problems():
    numbers = dict(enumerate(["thirteen", "fourteen", "fifteen", "sixteen", "seventeen"], 13))
    stored = {name for name, _ in stored_results()}
    assert f"its {numbers[len(stored)]} problems" in " ".join(pages.text("results/suite.md").split())


def test_pages_install_from_a_clone():
    """No package index has gradhomog: the page of installation describes how to install an extra."""
    assert [page.name for page in PAGES if re.search(r"pip install ['\"]?gradhomog", page.read_text("utf-8"))] == []


def test_the_first_two_sh_blocks_of_the_readme_hold_its_commands():
    setup, tests = blocks(ROOT / "README.md", "sh")[:2]
    assert setup.splitlines()[-1] == "gradhomog compare"
    assert "pytest" in tests


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_example_run_files_are_valid(path):
    assert load(path).homogenizers


CHECK_PAGE = pages.text("guide/check.md")


def test_the_page_of_the_kit_has_its_outcomes_options_functions_and_fixtures() -> None:
    [commands] = [action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    options = {text for action in commands.choices["check"]._actions for text in action.option_strings}
    functions = {name for name in testing.__all__ if not inspect.isclass(getattr(testing, name))} - {"Outcome"}
    required = {
        *(f"| {MARKS.get(outcome, '-')} | {outcome} |" for outcome in typing.get_args(Outcome)),
        *(text for text in options - {"--help"} if text.startswith("--")),
        *functions,
        *(f"- `{name}" for name in vars(pytest_plugin) if name.startswith("gradhomog_")),
    }
    assert {text for text in required if text not in CHECK_PAGE} == set()


BENCHMARKS_PAGE = (ROOT / "docs" / "guide" / "benchmarks.md").read_text(encoding="utf-8")

SHORT = {"folders": "folders", "modulo": "modulo 4", "novel": "novel"}


def tables() -> Iterator[list[list[str]]]:
    for block in BENCHMARKS_PAGE.split("\n\n"):
        if block.startswith("| "):
            yield [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]


def table(*header: str) -> dict[str, list[str]]:
    """Rows after the first cell, of the table with this header."""
    (found,) = (rows for rows in tables() if rows[0] == list(header))
    return {row[0].strip("`"): row[1:] for row in found[2:]}


def test_classes_images_rules_and_orders_are_those_of_the_catalogue() -> None:
    header = ("name", "benchmark", "classes: base, val, novel", "images", "split rule", "order of classes")
    assert table(*header) == {
        name: [
            benchmark.title,
            ", ".join(map(str, benchmark.splits.values())),
            "–" if benchmark.images is None else f"{benchmark.images:,}",
            SHORT[benchmark.rule],
            benchmark.order,
        ]
        for name, benchmark in BENCHMARKS.items()
    }


def test_sources_terms_and_files_are_those_of_the_catalogue() -> None:
    sources, files = table("name", "obtained from", "terms"), table("name", "files below the data root")
    assert set(sources) == set(files) == set(BENCHMARKS)
    for name, benchmark in BENCHMARKS.items():
        found = [*sources[name], files[name][0].replace("`", "")]
        assert found == [benchmark.source, benchmark.terms, benchmark.layout]


def test_the_page_of_multi_task_benchmarks_has_the_catalogue_and_the_steps_of_the_papers() -> None:
    page = (ROOT / "docs" / "guide" / "benchmarks-multitask.md").read_text(encoding="utf-8")
    for name, facts in MULTI_TASK.items():
        assert f"| `{name}` | {facts['source']} | {facts['terms']} |" in page
        [files] = [line for line in page.replace("`", "").splitlines() if line == f"| {name} | {facts['layout']} |"]
        assert files
    [titles] = re.findall(r"^\| scale \| seeds \| steps: (.*) \|$", page, re.MULTILINE)
    columns = [title.strip(" `") for title in titles.split("|")]
    for scale in ("smoke", "small", "medium", "paper"):
        [cells] = re.findall(rf"^\| `{scale}` \| (.*) \|$", page, re.MULTILINE)
        seeds, *steps = [int(cell.replace(",", "")) for cell in cells.split("|")]
        for name, count in zip(columns, steps, strict=True):
            [one] = planned_comparisons(name, Settings({}, scale, folder="data"))
            assert (one.config.train.steps, len(one.config.seed_list)) == (count, seeds)


def test_split_rules_are_those_of_the_catalogue() -> None:
    rows = table("split rule", "classes, numbered from 0")
    for rule, text in RULES.items():
        assert rows[SHORT[rule]][0].removesuffix(": for meta-test only") == text.removeprefix("class i: ")

"""The experiment `pinn`: results and notes of a paper without data and learners."""

import json
from pathlib import Path

import pytest

from gradhomog.cli import main
from gradhomog.experiments.reproduce.comparisons import Settings
from gradhomog.experiments.reproduce.execute import Reproduction, reproduce
from gradhomog.experiments.reproduce.report import text_table

TINY = [
    "network.width=4", "problem.depth=2", "problem.interior=8", "problem.boundary=2", "train.steps=3",
    "train.validate_every=2", "train.log_every=1", "seeds=2",
]  # fmt: skip
SETTINGS = Settings(
    {}, targets=["klein_gordon", "burgers_config"], methods=["Adam", "UPGrad", "PCGrad", "m-config"], overrides=TINY
)

pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, without_pictures: None) -> Reproduction:
    return reproduce("pinn", SETTINGS, tmp_path_factory.mktemp("out") / "pinn")


def test_rows_are_means_of_the_results_beside_the_printed_errors(finished: Reproduction) -> None:
    rows = {(row.column, row.row): row for row in finished.results.rows}
    assert len(rows) == 7  # the notebook has no row PCGrad
    texts = {"Adam": "none", "UPGrad": "upgrad", "PCGrad": "pcgrad", "M-ConFIG": 'tracked(method="config")'}
    for (column, title), row in rows.items():
        part = f"{column}-tracked" if title == "M-ConFIG" else column
        results = [json.loads(path.read_text()) for path in (finished.folder / part / "runs").glob("*/result.json")]
        scores = {each["seed"]: each["scores"][0] for each in results if each["homogenizers"] == texts[title]}
        assert row.seed_scores == scores
        assert row.ours.mean == row.median == pytest.approx(sum(scores.values()) / 2)
        plain = rows[column, "Adam"]
        if row is plain:
            assert row.to_plain is None
        else:  # also of tracked methods, which are in another comparison
            assert row.to_plain is not None
            assert row.to_plain.mean == pytest.approx(row.ours.mean - plain.ours.mean, abs=1e-12)
    pcgrad = rows["klein_gordon", "PCGrad"]
    assert pcgrad.published == [0.0286, 0.0064]
    assert pcgrad.ratio == pytest.approx(pcgrad.ours.mean / 0.0286)


def test_the_text_and_the_page_have_all_rows_and_sources(finished: Reproduction) -> None:
    text = text_table(finished.paper, finished.results, finished.description).text()
    page = (finished.folder / "report.html").read_text()
    for word in ("klein_gordon", "burgers_config", "UPGrad", "0.0286 (0.0064)", "0.03095", "changed by network.width",
                 "Table 1 (mean", "notebook (one run", "burgers_config: mean squared error"):  # fmt: skip
        assert word in text
        assert word in page
    content = finished.results.to_json(finished.paper)
    assert content["missing"] == []
    assert content["cells"][0]["published_deviation"] == 0.0386


def test_numbers_of_the_smallest_scale_are_not_divided_by_the_papers(finished: Reproduction) -> None:
    ratio = next(row.ratio for row in finished.results.rows if row.ratio)
    for scale, is_printed in (("smoke", False), ("small", True)):
        text = text_table(finished.paper, finished.results, {**finished.description, "scale": scale}).text()
        assert (f"  {ratio:.3g} " in text) == is_printed


def test_the_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [word for text in TINY for word in ("--set", text)]
    command = ["reproduce", "pinn", "--target", "helmholtz", "--method", "adam", "--jobs", "1", *overrides]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr()
    assert "0.0609 (0.0231)" in printed.out
    assert "1/1 helmholtz" in printed.err
    assert main([*command, "--out", str(tmp_path / "a")]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "a"), "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["row"] == "Adam"

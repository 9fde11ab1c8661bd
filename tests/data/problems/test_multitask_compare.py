"""Comparisons on multi-task problems: the same table after interruptions, the report, and the commands."""

import csv

import numpy as np
import pytest

from gradhomog.cli import main
from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.report.tables import score_table
from gradhomog.experiments.results import comparison_dir as folders
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import SINGLE
from tests.data.problems.conftest import GLYPHS
from tests.experiments.run_helpers import results

pytestmark = pytest.mark.slow

OVERRIDES = [*GLYPHS, 'homogenizers=["single-task", "pcgrad", "gradnorm | gradnorm(alpha=0.5) | gradnorm(alpha=3.0)"]']
LABELS = ["plain", "static (tuned)", SINGLE, "pcgrad", "gradnorm (tuned)"]


def config(*more):
    return load(None, [*OVERRIDES, *more]).with_baselines()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted comparison in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "problems-cache"))
        return compare(config(), tmp_path_factory.mktemp("whole"))


def test_every_method_has_every_seed_and_static_weights_have_the_largest_budget(whole):
    assert not whole.failures
    rows = {row.label: row for row in whole.summary.rows}
    assert list(rows) == LABELS
    assert all(row.seeds == (0, 1) for row in rows.values())
    assert len(rows["static (tuned)"].tuned_from) == len(rows["gradnorm (tuned)"].tuned_from) == 3
    assert whole.summary.finished_runs == whole.summary.expected_runs == 10


def test_the_table_has_a_column_per_task_and_the_improvement_over_single_task_training(whole):
    outcomes = results(whole.folder)
    text = score_table(whole.summary).text()
    header = text.splitlines()[0]
    assert all(title in header for title in ("accuracy %", "Δm %", "left", "right"))
    assert "relative improvement on single-task in percent" in text
    assert "10 single pictures" not in text
    assert "no picture is in two of these splits" in text
    for row in whole.summary.rows:
        changes = []
        for seed in (0, 1):
            (scores,) = [v[0] for k, v in outcomes.items() if (k[0], k[2], k[3]) == (row.label, seed, "compare")]
            base = outcomes[SINGLE, SINGLE, seed, "compare"][0]
            changes.append(sum((s - b) / b for s, b in zip(scores, base, strict=True)) / 2)
        if row.label == SINGLE:
            assert row.improvement is None
        else:
            assert row.improvement.mean == pytest.approx(sum(changes) / 2)
    with (whole.folder / "summary.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["improvement.mean"] != "" for line in lines] == [label != SINGLE for label in LABELS]


def test_the_report_describes_the_problem_and_no_episodes(whole):
    page = (whole.folder / "report.html").read_text(encoding="utf-8")
    assert "comparison on glyph_pairs" in page
    assert "On glyph_pairs the best baseline is plain, with a test accuracy of" in page
    assert "left, right" in page
    assert "Test scores do not affect the choice." in page
    assert "validation accuracy" in page
    for word in ("test tasks", "training domains", "episodes"):
        assert word not in page
    drawn = {path.stem for path in (whole.folder / "figures").iterdir()}
    assert {"scores", "conflict", "weights", "validation"} <= drawn
    assert "trajectories" not in drawn


def test_compare_adds_the_baselines_and_report_prints_the_same_table(without_figures, tmp_path, capsys):
    arguments = ["--jobs=1", *(argument for override in [*GLYPHS, "seeds=1"] for argument in ("--set", override))]
    assert main(["compare", "--out", str(tmp_path / "out"), *arguments, "--set", 'homogenizers=["pcgrad"]']) == 0
    printed = capsys.readouterr().out
    assert [line.split("  ")[0] for line in printed.splitlines()[2:5]] == ["plain", "static (tuned)", "pcgrad"]
    assert "±" not in printed  # one seed, and the tasks are not a sample
    assert "A method with one run has no interval." in printed
    assert "relative improvement on plain in percent" in printed
    assert main(["report", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[:12] == printed.splitlines()[:12]


def test_the_landscape_has_one_run_per_method_and_paths_in_its_report(tmp_path):
    overrides = ["problem.name=landscape", "train.steps=20", "train.validate_every=10"]
    outcome = compare(load(None, [*overrides, 'homogenizers=["pcgrad"]']).with_baselines(), tmp_path / "out")
    assert not outcome.failures
    text = score_table(outcome.summary).text()
    header, *rows = text.splitlines()
    assert "from the front" in header
    assert "a: f1" in header
    assert "Δm" not in text  # ratios of such losses mean nothing
    assert "±" not in "".join(rows)
    assert "a from (-8.5, 7.5), b from (-8.5, -5), c from (9, 9)" in text
    assert (outcome.folder / "figures" / "trajectories.svg").exists()
    page = (outcome.folder / "report.html").read_text(encoding="utf-8")
    assert "Pareto optimal points" in page
    # There are no held-out data: methods are tuned on the reported losses, and the report states this.
    assert "was chosen from 2 candidates by loss in this table" in text
    assert "The row of a tuned method is its candidate with the best loss in this report" in page
    assert "methods with one trial" in page
    for word in ("test loss", "validation loss", "Validation score", "by validation score", "Test scores"):
        assert word not in page + text


def test_results_of_other_data_are_not_continued(without_figures, tmp_path):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    data, out = tmp_path / "table.npz", tmp_path / "out"
    np.savez(data, x=rows[:, 0], y=rows.sum(1), z=rows[:, 1])
    overrides = ["problem.name=regression", f'problem.data="{data}"', 'problem.targets=["y", "z"]', "train.steps=2"]
    overrides += ["train.validate_every=1", "seeds=1", 'homogenizers=["pcgrad"]', "network.width=4"]
    compare(load(None, overrides).with_baselines(), out)
    compare(load(out / folders.RUN_FILE), out, resume=True)
    np.savez(data, x=-rows[:, 0], y=rows.sum(1), z=rows[:, 1])
    with pytest.raises(ConfigError, match="has results of other data: the content of problem differs"):
        compare(load(out / folders.RUN_FILE), out, resume=True)

"""Result tables: every run, test task, validation and logged step once, with the numbers of the files."""

import math

import numpy as np
import pytest

from gradhomog import ConfigError
from gradhomog.experiments import load
from gradhomog.experiments.results.records import records
from tests.experiments.run_helpers import write_comparison
from tests.experiments.synthetic_records import comparison

METHODS = ["plain", "static (tuned)", "pcgrad"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("comparison")
    write_comparison(path, comparison(METHODS, seeds=2, tasks=6))
    return path


def test_every_run_and_test_task_occurs_once(folder):
    tables = load(folder)
    assert sorted(zip(tables.runs["label"], tables.runs["seed"], strict=True)) == sorted(
        (label, seed) for label in METHODS for seed in (0, 1)
    )
    assert len(tables.scores["score"]) == 3 * 2 * 6
    for row, run in enumerate(tables.runs["run"]):
        scores = tables.scores["score"][tables.scores["run"] == run]
        assert tables.runs["score"][row] == pytest.approx(scores.mean())
        assert (folder / "runs" / run / "result.json").exists()


def test_curves_contain_the_numbers_of_the_events(folder):
    tables = load(folder)
    logged = [r for r in records(folder) if r["event"] == "step" and r["role"] == "compare"]
    assert len(tables.steps["loss"]) == sum(len(record["losses"]) for record in logged)
    first = logged[0]
    selected = (tables.steps["run"] == first["run"]) & (tables.steps["step"] == first["step"])
    assert tables.steps["loss"][selected].tolist() == first["losses"]
    assert tables.steps["norm"][selected].tolist() == first["norms"]
    cosines = np.array(first["cosines"])
    means = (cosines.sum(1) - cosines.diagonal()) / (len(cosines) - 1)
    np.testing.assert_allclose(tables.steps["cosine"][selected], means)
    of_plain = (tables.validation["label"] == "plain") & (tables.validation["seed"] == 0)
    assert tables.validation["step"][of_plain].tolist() == [20, 40, 60]


def test_unknown_numbers_are_nan_and_an_empty_comparison_has_empty_columns(tmp_path):
    records_of_one_run = comparison(["plain"], seeds=1, tasks=3)
    records_of_one_run[-1]["scores"][1] = None
    write_comparison(tmp_path / "one", records_of_one_run)
    tables = load(tmp_path / "one")
    assert math.isnan(tables.scores["score"][1])
    assert math.isnan(tables.runs["score"][0])
    write_comparison(tmp_path / "none", [record for record in records_of_one_run if record["event"] == "start"])
    assert all(len(column) == 0 for table in vars(load(tmp_path / "none")).values() for column in table.values())


def test_a_folder_without_comparison_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read plan\.json"):
        load(tmp_path)

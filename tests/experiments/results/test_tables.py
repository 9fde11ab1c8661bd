"""Results as columns: every run, test task, validation and logged step once, with the numbers of the files."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradhomog import ConfigError
from gradhomog.experiments import load
from gradhomog.experiments.results.records import records
from tests.experiments.running import write
from tests.experiments.synthetic import comparison

METHODS = ["plain", "static (tuned)", "pcgrad"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("comparison")
    write(path, comparison(METHODS, seeds=2, tasks=6))
    return path


def test_every_run_and_test_task_is_there_once(folder):
    found = load(folder)
    assert sorted(zip(found.runs["label"], found.runs["seed"], strict=True)) == sorted(
        (label, seed) for label in METHODS for seed in (0, 1)
    )
    assert len(found.scores["score"]) == 3 * 2 * 6
    for row, run in enumerate(found.runs["run"]):
        mine = found.scores["score"][found.scores["run"] == run]
        assert found.runs["score"][row] == pytest.approx(mine.mean())
        assert (folder / "runs" / run / "result.json").exists()


def test_curves_have_the_numbers_of_the_events(folder):
    found = load(folder)
    told = [r for r in records(folder) if r["event"] == "step" and r["role"] == "compare"]
    assert len(found.steps["loss"]) == sum(len(record["losses"]) for record in told)
    first = told[0]
    mine = (found.steps["run"] == first["run"]) & (found.steps["step"] == first["step"])
    assert found.steps["loss"][mine].tolist() == first["losses"]
    assert found.steps["norm"][mine].tolist() == first["norms"]
    cosines = np.array(first["cosines"])
    means = (cosines.sum(1) - cosines.diagonal()) / (len(cosines) - 1)
    np.testing.assert_allclose(found.steps["cosine"][mine], means)
    of_plain = (found.validation["label"] == "plain") & (found.validation["seed"] == 0)
    assert found.validation["step"][of_plain].tolist() == [20, 40, 60]


def test_what_is_unknown_is_nan_and_an_empty_comparison_has_empty_columns(tmp_path):
    made = comparison(["plain"], seeds=1, tasks=3)
    made[-1]["scores"][1] = None
    write(tmp_path / "one", made)
    found = load(tmp_path / "one")
    assert math.isnan(found.scores["score"][1])
    assert math.isnan(found.runs["score"][0])
    write(tmp_path / "none", [record for record in made if record["event"] == "start"])
    assert all(len(column) == 0 for table in vars(load(tmp_path / "none")).values() for column in table.values())


def test_frames_have_the_same_columns(folder):
    pytest.importorskip("pandas")
    found = load(folder)
    frames = found.to_pandas()
    assert set(frames) == {"runs", "scores", "validation", "steps"}
    assert frames["runs"].groupby("label")["score"].count().to_dict() == dict.fromkeys(METHODS, 2)
    assert list(frames["steps"].columns) == list(found.steps)


def test_a_folder_that_is_none_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"no plan\.json can be read there"):
        load(tmp_path)

"""Agreement before and after homogenizers, compared with explicit vectors; figures of stages and measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from gradhomog.experiments.report import figures
from gradhomog.experiments.report.figures.curves import relative_distance
from gradhomog.experiments.report.figures.stages import method_stages
from tests.experiments.synthetic_records import METHODS, comparison, stage

PIPELINE = "isi + rotate + reweight(beta=1.5)"


def distances(rows):
    return [np.linalg.norm(rows[i] - rows[j]) for i in range(len(rows)) for j in range(i)]


def lines(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
def test_the_distance_is_that_of_the_vectors_over_their_mean_norm(seed, scale):
    rows = np.random.default_rng(seed).normal(size=(4, 9)) * scale
    expected = np.mean(distances(rows)) / np.mean(np.linalg.norm(rows, axis=1))
    assert relative_distance(stage("m", rows)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1, 2], [1, 2]], 0),
        ([[3, 0], [0, 3]], math.sqrt(2)),
        ([[1, 0], [-1, 0]], 2),
        ([[2, 0], [0, 0]], 2),  # the distance of a row to a zero row is its norm
    ],
)
def test_distances_of_simple_rows(rows, expected):
    norms = np.linalg.norm(rows, axis=1)
    cosines = [[float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)) if any(a) and any(b) else None
                for b in rows] for a in rows]  # fmt: skip
    assert relative_distance({"norms": norms.tolist(), "cosines": cosines}) == pytest.approx(expected, abs=1e-12)


def test_a_single_task_or_rows_of_zeros_or_not_finite_have_no_distance():
    assert math.isnan(relative_distance({"norms": [1.0], "cosines": [[1.0]]}))
    assert math.isnan(relative_distance({"norms": [0.0, 0.0], "cosines": [[None, None], [None, None]]}))
    assert math.isnan(relative_distance({"norms": [1.0, None], "cosines": [[1.0, None], [None, None]]}))


def test_stages_are_those_of_probes_if_a_method_has_probes_else_of_steps():
    chains = method_stages(comparison(["plain", "pcgrad", PIPELINE], seeds=2))
    assert [(chain.label, chain.names, chain.probed) for chain in chains] == [
        ("pcgrad", ("plain", "pcgrad"), False),
        (PIPELINE, ("plain", "isi", "rotate", "reweight"), True),
    ]
    assert [len(chain.runs) for chain in chains] == [2, 2]


def test_a_homogenizer_that_occurs_twice_has_a_numbered_name():
    [chain] = method_stages(comparison(["pcgrad + static + pcgrad"], seeds=1, steps=2))
    assert chain.names == ("plain", "pcgrad", "static", "pcgrad#2")


def test_the_panels_have_the_numbers_of_the_records():
    records = comparison(["plain", "mgda"], seeds=1, steps=3)
    left, middle, right = figures.stages(records).axes
    steps = [record for record in records if record["event"] == "step" and "mgda" in record["run"]]
    assert lines(left, "before").get_xdata().tolist() == [1, 5, 10]
    for record, ratio, distance in zip(
        steps, lines(middle, "after mgda").get_ydata(), lines(right, "after mgda").get_ydata(), strict=True
    ):
        assert ratio == pytest.approx(max(record["stages"][0]["norms"]) / min(record["stages"][0]["norms"]))
        assert distance == pytest.approx(relative_distance(record["stages"][0]))
    # Weights change lengths, not directions.
    assert lines(left, "after mgda").get_ydata() == pytest.approx(lines(left, "before").get_ydata())


@pytest.mark.slow
def test_there_is_one_row_of_panels_for_each_of_ten_methods():
    methods = ["plain", *METHODS[2:], *(f"m{number} + static" for number in range(6))]
    figure = figures.stages(comparison(methods, seeds=1, steps=2))
    assert len(figure.axes) == 3 * 10


def test_logs_of_older_versions_have_no_stages():
    records = comparison(["plain", "pcgrad", PIPELINE], seeds=1, steps=3)
    old = [
        {key: value for key, value in record.items() if key not in ("stages", "measured")}
        for record in records
        if record["event"] != "probe"
    ]
    assert figures.stages(old) is None
    assert figures.conflict(old) is not None

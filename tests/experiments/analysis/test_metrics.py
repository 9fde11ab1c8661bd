"""Names, order and improvements of scores; and Δm, whose sign and scale depend on the metric."""

import math

import pytest

from gradhomog import ConfigError
from gradhomog.experiments.analysis.summary import improvement, summarize
from gradhomog.experiments.score_metrics import METRICS, metric
from tests.experiments.synthetic_records import result, with_start


def test_nan_is_the_worst_score():
    for measure in METRICS.values():
        assert measure.is_better(0.5, math.nan)
        assert not measure.is_better(math.nan, 0.5)


def test_improvements_are_relative_to_accuracies_and_errors():
    assert metric("accuracy").improvement(0.9, 0.6) == pytest.approx(0.5)
    assert metric("mse").improvement(0.3, 0.4) == pytest.approx(0.25)
    assert metric("r2").improvement(0.8, 0.6) == pytest.approx(0.5)
    assert metric("r2").improvement(-1.0, 0.0) == pytest.approx(-1)  # twice the error
    assert math.isnan(metric("accuracy").improvement(0.5, 0.0))


def test_an_unknown_metric_in_a_record_is_an_error():
    with pytest.raises(ConfigError, match="unknown metric 'speed' in a record; known: accuracy, mse"):
        metric("speed")


def runs(*scores_by_seed, kind="accuracy"):
    return {seed: {"metric": kind, "scores": list(found)} for seed, found in enumerate(scores_by_seed)}


def test_delta_m_is_the_mean_over_tasks_of_each_seed_then_over_seeds():
    base, ours = runs((0.5, 0.8), (0.4, 0.8)), runs((0.6, 0.8), (0.4, 0.6))
    found = improvement(ours, base)
    assert found.mean == pytest.approx((0.1 - 0.125) / 2)  # (20 % + 0 %) / 2 and (0 % − 25 %) / 2
    assert found.n == 2
    assert improvement(base, base).mean == 0


def test_delta_m_is_over_common_seeds_and_none_without_them():
    base = runs((0.5, 0.5), (0.25, 0.5))
    assert improvement({1: runs((0.5, 0.5))[0]}, base).mean == pytest.approx(0.5)
    assert improvement({7: runs((0.5, 0.5))[0]}, base) is None


def test_delta_m_of_losses_that_may_be_negative_is_none():
    assert improvement(runs((-1.0, 2.0), kind="loss"), runs((-2.0, 2.0), kind="loss")) is None


def test_delta_m_is_nan_if_a_score_is_not_finite():
    assert math.isnan(improvement(runs((None, 0.5)), runs((0.5, 0.5))).mean)


@pytest.mark.parametrize(
    ("labels", "baseline"),
    [(("plain", "single-task", "pcgrad"), "single-task"), (("plain", "pcgrad"), "plain"), (("pcgrad",), None)],
)
def test_the_baseline_of_delta_m_is_single_task_else_plain(labels, baseline):
    records = [result(label, 0, [0.5, 0.6], learner="pairs", problem="pairs") for label in labels]
    summary = summarize(with_start(records))
    assert summary.improvement_baseline == baseline
    assert [row.improvement is None for row in summary.rows] == [baseline in (None, label) for label in labels]


def test_the_detectable_difference_is_one_point_for_percentages_and_5_percent_of_other_scores():
    assert metric("accuracy").detectable_difference(0.4) == 0.01
    assert metric("mse").detectable_difference(0.4) == pytest.approx(0.02)
    assert metric("r2").detectable_difference(-0.4) == pytest.approx(0.02)
    for name, base in (("mse", 0.0), ("mse", math.nan), ("loss", 0.4)):
        assert metric(name).detectable_difference(base) is None

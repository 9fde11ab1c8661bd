"""Names, order and improvements of scores; and Δm, whose sign and scale depend on the metric."""

import math

import numpy as np
import pytest
from scipy import stats

from gradhomog import ConfigError
from gradhomog.experiments.analysis.summary import improvement_by_seed, mean_ranks, summarize
from gradhomog.experiments.report.tables import score_table
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
    with pytest.raises(ConfigError, match=r"unknown metric 'speed' in a record; known: accuracy, .*mse"):
        metric("speed")


def runs(*scores_by_seed, kind="accuracy"):
    names = ["a", "b"]
    return {
        seed: {"metric": kind, "domains": names, "scores": list(found)} for seed, found in enumerate(scores_by_seed)
    }


def test_delta_m_is_the_mean_over_tasks_of_each_seed_then_over_seeds():
    base, ours = runs((0.5, 0.8), (0.4, 0.8)), runs((0.6, 0.8), (0.4, 0.6))
    found = improvement_by_seed(ours, base)
    assert found == pytest.approx({0: 0.1, 1: -0.125})  # (20 % + 0 %) / 2 and (0 % − 25 %) / 2
    assert improvement_by_seed(base, base) == {0: 0, 1: 0}


def test_delta_m_is_over_common_seeds_and_empty_without_them():
    base = runs((0.5, 0.5), (0.25, 0.5))
    assert improvement_by_seed({1: runs((0.5, 0.5))[0]}, base) == pytest.approx({1: 0.5})
    assert improvement_by_seed({7: runs((0.5, 0.5))[0]}, base) == {}


def test_delta_m_of_losses_that_may_be_negative_is_empty():
    assert improvement_by_seed(runs((-1.0, 2.0), kind="loss"), runs((-2.0, 2.0), kind="loss")) == {}


def test_delta_m_is_nan_if_a_score_is_not_finite():
    assert math.isnan(improvement_by_seed(runs((None, 0.5)), runs((0.5, 0.5)))[0])


NYUV2 = dict.fromkeys(("mIoU", "pixel accuracy"), "accuracy") | dict.fromkeys(
    ("absolute error", "relative error", "mean angle", "median angle"), "error"
) | dict.fromkeys(("within 11.25°", "within 22.5°", "within 30°"), "accuracy")  # fmt: skip


def nyuv2(*values):
    """The record of a run with these scores, shares in percent."""
    scores = {name: value / (100 if kind == "accuracy" else 1)
              for (name, kind), value in zip(NYUV2.items(), values, strict=True)}  # fmt: skip
    return {"metric": "loss", "domains": ["a"], "scores": [1.0], "additional_scores": scores,
            "additional_metrics": NYUV2}  # fmt: skip


def test_delta_m_of_named_scores_is_that_of_a_printed_row():
    single = nyuv2(
        38.30, 63.76, 0.6754, 0.2780, 25.01, 19.21, 30.14, 57.20, 69.15
    )  # Nash-MTL, arXiv 2202.01017, Table 2
    equal = nyuv2(39.29, 65.33, 0.5493, 0.2263, 28.15, 23.96, 22.09, 47.50, 61.08)
    assert improvement_by_seed({0: equal}, {0: single})[0] == pytest.approx(-0.0559, abs=5e-5)  # a drop of 5.59 %


def test_the_mean_rank_is_that_of_scipy_in_the_direction_of_each_metric():
    random = np.random.default_rng(0)
    values = np.round(random.uniform(1, 4, (5, 2, 9)))  # of five methods and two seeds, with ties
    found = mean_ranks({name: {seed: nyuv2(*values[name, seed]) for seed in (0, 1)} for name in range(5)})
    signs = np.array([-1 if kind == "accuracy" else 1 for kind in NYUV2.values()])
    expected = stats.rankdata(signs * values, axis=0).mean(axis=2)
    assert [[found[name][seed] for seed in (0, 1)] for name in range(5)] == pytest.approx(expected)


def test_a_mean_rank_is_of_the_seeds_that_all_methods_have_and_diverged_runs_are_last():
    first, second = runs((0.5, 0.5), (0.25, 0.5)), runs((0.4, None))
    assert mean_ranks({"a": first, "b": second}) == {"a": {0: 1}, "b": {0: 2}}


def test_named_scores_have_columns_with_their_units_and_a_summary_has_mean_ranks():
    records = [
        result(label, seed, [1.0], learner="p", problem="p", metric="loss", domains=["a"],
               additional_scores={"mIoU": share, "angle": angle},
               additional_metrics={"mIoU": "accuracy", "angle": "error"})
        for label, share, angle in (("plain", 0.25, 20.0), ("single-task", 0.5, 10.0), ("pcgrad", 0.5, 30.0))
        for seed in (0, 1)
    ]  # fmt: skip
    summary = summarize(with_start(records))
    assert [row.mean_rank and row.mean_rank.mean for row in summary.rows] == [1.5, None, 1.5]
    assert [row.improvement and row.improvement.mean for row in summary.rows] == [-0.75, None, -1.0]
    text = score_table(summary).text()
    for word in ("mIoU %", "angle ", "25.00 ± 0.00", "30.00 ± 0.00", "mean over named scores"):
        assert word in text


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

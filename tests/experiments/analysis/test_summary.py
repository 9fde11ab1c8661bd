"""The table compares runs of the same seed or task, and claims differences only where the tests reject equality."""

import csv
import dataclasses
import io
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from gradhomog.errors import ConfigError
from gradhomog.experiments.analysis import summary as analysis
from gradhomog.experiments.report.findings import findings
from gradhomog.experiments.report.tables import score_table, summary_csv
from gradhomog.experiments.results.records import records
from tests.experiments.run_helpers import write_comparison
from tests.experiments.synthetic_records import METHODS, comparison, result, start, with_start

# Multiples of 1/1024 below 1: their sums and differences are exact, so that tests can compare them exactly.
grid = st.integers(0, 1023).map(lambda number: number / 1024)
scores_of_runs = st.integers(1, 4).flatmap(
    lambda tasks: st.lists(st.lists(grid, min_size=tasks + 1, max_size=tasks + 1), min_size=1, max_size=4)
)


def summarize(records):
    return analysis.summarize(records if records[0]["event"] == "start" else with_start(records))


def findings_text(summary):
    """All sentences of the findings."""
    return " ".join(" ".join([headline, *sentences]) for headline, sentences in findings(summary))


def row_of(records, label):
    return next(row for row in summarize(records).rows if row.label == label)


@given(scores_of_runs, st.integers(-512, 512).map(lambda number: number / 1024))
def test_a_method_shifted_by_a_constant_differs_by_exactly_that_constant(table, shift):
    records = [result("plain", seed, scores) for seed, scores in enumerate(table)]
    records += [result("moved", seed, [score + shift for score in scores]) for seed, scores in enumerate(table)]
    difference = row_of(records, "moved").to_plain.difference
    # Means of seeds are rounded; tasks of one seed are not.
    assert difference.mean == pytest.approx(shift, abs=0 if len(table) == 1 else 1e-15)
    assert difference.half_width == pytest.approx(0, abs=0 if len(table) == 1 else 1e-14)


def test_runs_are_paired_by_seed_in_any_order_of_records():
    plain = {0: [0.1, 0.3], 1: [0.5, 0.5], 2: [0.9, 0.7]}
    records = [result("plain", seed, plain[seed]) for seed in (2, 0, 1)]
    records += [result("m", seed, [score + 0.0625 for score in plain[seed]]) for seed in (1, 2, 0)]
    row = row_of(records, "m")
    assert row.seeds == (0, 1, 2)
    assert row.to_plain.difference.mean == pytest.approx(0.0625)
    assert row.to_plain.difference.half_width == pytest.approx(0, abs=1e-12)
    assert (row.to_plain.unit, row.to_plain.difference.n) == ("seeds", 3)


def test_a_single_seed_is_compared_by_test_task_with_a_note():
    records = [result("plain", 0, [0.2, 0.4, 0.9]), result("m", 0, [0.3, 0.4, 0.8])]
    summary = summarize(records)
    row = summary.rows[1]
    assert (row.unit, row.to_plain.unit, row.to_plain.difference.n) == ("tasks", "tasks", 3)
    assert "over test tasks (n = 3" in score_table(summary).text()
    assert "it does not include the variation between trainings" in score_table(summary).text()


def test_rows_over_tasks_are_marked_among_rows_over_seeds():
    records = [result("plain", seed, [0.2, 0.4]) for seed in range(2)] + [result("m", 0, [0.3, 0.4])]
    lines = score_table(summarize(records)).text().splitlines()
    assert ["†" in line for line in lines[2:4]] == [False, True]
    assert any(line.startswith("† one seed") for line in lines)


def test_only_common_seeds_are_compared_and_timed():
    records = [result("plain", 0, [0.2, 0.4], step_seconds=1.0), result("plain", 1, [0.6, 0.6], step_seconds=2.0)]
    records += [result("m", 1, [0.7, 0.7], step_seconds=3.0), result("m", 2, [0.9, 0.9], step_seconds=90.0)]
    row = row_of(records, "m")
    assert row.to_plain.difference.mean == pytest.approx(0.1)
    assert row.to_plain.time_ratio == pytest.approx(1.5)


def test_a_learner_is_compared_to_its_own_plain_runs():
    records = [result("plain", 0, [0.2, 0.4]), result("m", 0, [0.3, 0.5])]
    records += [result("plain", 0, [0.7, 0.9], learner="fomaml"), result("m", 0, [0.6, 0.8], learner="fomaml")]
    summary = summarize(records)
    assert [row.learner for row in summary.rows] == ["maml", "maml", "fomaml", "fomaml"]
    assert [row.label for row in summary.rows] == ["plain", "m", "plain", "m"]
    assert summary.rows[1].to_plain.difference.mean == pytest.approx(0.1)
    assert summary.rows[3].to_plain.difference.mean == pytest.approx(-0.1)


def test_plain_is_the_first_row_and_others_are_in_the_order_of_the_configuration(tmp_path):
    write_comparison(tmp_path, comparison(["z", "plain", "a"], seeds=2, steps=1))
    assert [row.label for row in summarize(records(tmp_path)).rows] == ["plain", "z", "a"]


def test_domains_are_averaged_over_their_own_tasks():
    records = [result("plain", 0, [0.1, 0.5, 0.3, 0.7], domains=["a", "b", "a", "b"])]
    found = summarize(records).rows[0].by_domain
    assert {name: interval.mean for name, interval in found.items()} == pytest.approx({"a": 0.2, "b": 0.6})


@pytest.mark.parametrize(
    ("gap", "metric", "verdict"),
    [(0.2, "accuracy", "better"), (-0.2, "accuracy", "worse"), (0.2, "mse", "worse"), (-0.2, "mse", "better")],
)
def test_the_verdict_depends_on_whether_higher_scores_are_better(gap, metric, verdict):
    base = [0.4, 0.5, 0.6, 0.45]
    records = [result("plain", 0, base, metric=metric)]
    records += [result("m", 0, [score + gap + score / 100 for score in base], metric=metric)]
    summary = summarize(records)
    assert summary.rows[1].to_plain.verdict == verdict
    assert f"m is {verdict} by" in findings_text(summary)
    assert ("m is significantly better" in findings_text(summary)) == (verdict == "better")


def bonferroni_holm(p_values):
    """Reject in the order of p values, while p < 0.05 / (number of remaining hypotheses)."""
    rejected = set()
    for p, index in sorted((p, index) for index, p in enumerate(p_values)):
        if p >= 0.05 / (len(p_values) - len(rejected)):
            break
        rejected.add(index)
    return rejected


@given(st.lists(st.tuples(grid, grid, grid), min_size=3, max_size=5), st.sampled_from(["accuracy", "mse"]))
def test_a_difference_is_claimed_if_and_only_if_holms_procedure_rejects(table, metric):
    labels = ("plain", "one", "two")
    records = [
        result(label, seed, [row[index], row[index]], metric=metric)
        for seed, row in enumerate(table)
        for index, label in enumerate(labels)
    ]
    plain, *others = zip(*table, strict=True)
    assume(all(len({a - b for a, b in zip(other, plain, strict=True)}) > 1 for other in others))
    p_values = [stats.ttest_rel(other, plain).pvalue for other in others]
    rejected = bonferroni_holm(p_values)
    summary = summarize(records)
    text = findings_text(summary)
    for index, (row, line) in enumerate(
        zip(summary.rows[1:], score_table(summary).text().splitlines()[3:], strict=False)
    ):
        assert row.to_plain.p_value == pytest.approx(p_values[index])
        assert (row.to_plain.verdict == "undecided") == (index not in rejected)
        assert ("*" in line) == (index in rejected)
        claimed = any(f"{row.label} is {word} by" in text for word in ("better", "worse"))
        assert claimed == (index in rejected)


STATIC = "static (tuned)"


def test_the_best_baseline_is_the_better_one_of_plain_and_tuned_static_weights():
    records = [result(label, 0, [score, score]) for label, score in (("plain", 0.5), (STATIC, 0.6), ("m", 0.7))]
    summary = summarize(records)
    assert summary.best_baselines == {"maml": STATIC}
    assert [row.to_baseline and row.to_baseline.reference for row in summary.rows] == [STATIC, None, STATIC]
    assert summary.rows[2].to_baseline.difference.mean == pytest.approx(0.1)
    assert summary.rows[2].to_plain.difference.mean == pytest.approx(0.2)
    errors = [{**record, "metric": "mse"} for record in records]
    assert summarize(errors).best_baselines == {"maml": "plain"}


def test_of_equal_baselines_the_plain_learner_is_the_reference():
    records = [result(label, 0, [0.5, 0.6]) for label in (STATIC, "plain")]
    assert summarize(records).best_baselines == {"maml": "plain"}


def test_without_a_baseline_with_a_score_there_is_no_comparison_with_one():
    summary = summarize([result("plain", 0, [None, 0.5]), result("m", 0, [0.6, 0.7])])
    assert summary.best_baselines == {}
    assert summary.rows[1].to_baseline is None
    assert "No baseline (plain or static (tuned)) has a finished run with a score" in findings_text(summary)


def paired(gaps, metric="accuracy"):
    """Runs of `plain` at 0.5 and of `m` with these differences, one per seed."""
    return [
        result(label, seed, [0.5 + gap * (label == "m")] * 2, metric=metric)
        for seed, gap in enumerate(gaps)
        for label in ("plain", "m")
    ]


def test_the_seeds_needed_are_for_one_point_or_for_5_percent_of_the_baselines_score():
    gaps = [0.0, 0.01, 0.02]  # a standard deviation of 0.01
    found = row_of(paired(gaps), "m").to_baseline
    assert found.seeds_needed == 10  # an effect of 1: see test_power
    found = row_of(paired(gaps, "mse"), "m").to_baseline
    assert found.seeds_needed == 4  # an effect of 2.5
    assert row_of(paired(gaps, "loss"), "m").to_baseline.seeds_needed is None


@pytest.mark.parametrize("gaps", [[0.01], [0.25, 0.25, 0.25]])
def test_one_seed_or_equal_differences_give_no_number_of_seeds(gaps):
    assert row_of(paired(gaps), "m").to_baseline.seeds_needed is None


def test_a_score_that_is_not_finite_makes_the_mean_nan_with_a_note():
    records = [result("plain", seed, [0.5, 0.5]) for seed in range(2)]
    records += [result("m", 0, [0.9, None]), result("m", 1, [0.9, 0.9])]
    summary = summarize(records)
    row = summary.rows[1]
    assert math.isnan(row.score.mean)
    assert row.to_plain.verdict is None
    assert "nan: a score is not finite, so there is no mean (m)" in score_table(summary).text()
    assert "There is no interval of the difference for m." in findings_text(summary)


def test_without_plain_there_are_no_differences_and_a_note_with_the_reason():
    summary = summarize([result("m", 0, [0.5, 0.6])])
    assert summary.rows[0].to_plain is None
    assert "No differences" in score_table(summary).text()
    assert "no method can be compared" in findings_text(summary)


def test_a_log_without_results_gives_a_note_instead_of_a_table():
    summary = summarize([start()])
    assert summary.expected_runs == 18
    assert "No run has finished" in score_table(summary).text()
    assert "0 of 18 runs finished" in score_table(summary).text()
    assert findings(summary) == []


ERROR = "loss is not finite\nin this network\n\nTraceback (most recent call last):\n  File x\n"


def test_missing_and_failed_runs_are_listed_in_notes():
    records = [start(["plain", "m"], seeds=2), result("plain", 0, [0.5, 0.6]), result("plain", 1, [0.5, 0.6])]
    records += [{"event": "failed", "run": "maml-m-s0", "role": "compare", "error": ERROR}]
    records += [{"event": "failed", "run": "maml-m-s1", "role": "compare", "error": "killed"}]
    records += [result("m", 1, [0.5, 0.6])]  # it was resumed and finished
    summary = summarize(records)
    table = score_table(summary).text()
    assert summary.failures == {"maml-m-s0": ERROR}
    assert "Partial: 3 of 4 runs finished." in table
    assert "Failed: maml-m-s0: loss is not finite in this network\n" in table + "\n"
    assert "1 of 2" in table


@pytest.mark.parametrize("event", ["result", "failed"])
def test_candidates_are_not_counted_as_runs_of_the_table(event):
    tried = {**result("m", 0, [0.5, 0.6]), "role": "candidate", "run": "tried", "event": event, "error": "killed"}
    records = [start(["plain", "m"], seeds=1), result("plain", 0, [0.5, 0.6]), tried]
    lines = score_table(summarize(records)).text().splitlines()
    assert "Partial: 1 of 2 runs finished; candidates of tuned methods are not counted." in lines


def test_candidates_are_not_rows_of_the_table_and_the_chosen_one_is_marked():
    summary = summarize(comparison())
    assert [row.label for row in summary.rows] == list(METHODS)
    assert [(item.homogenizers, item.chosen) for item in summary.candidates] == [
        ("static(seed=1)", True),
        ("static(seed=2)", False),
    ]
    assert summary.rows[1].tuned_from == ("static(seed=1)", "static(seed=2)")
    assert summary.finished_runs == 18


def test_results_of_different_tests_are_not_averaged():
    with pytest.raises(ConfigError, match=r"not tested on the same tasks.*2 and 3 scores"):
        summarize([result("plain", 0, [0.5, 0.6]), result("m", 0, [0.5, 0.6, 0.7])])


def test_accuracies_are_percent_and_errors_have_four_digits():
    records = [result("plain", 0, [0.4023, 0.4223])]
    assert "41.23 ± 12.71" in score_table(summarize(records)).text()
    records = [result("plain", 0, [0.4, 0.6], metric="mse")]
    assert "0.5000 ± 1.271" in score_table(summarize(records)).text()


def test_no_text_of_the_csv_file_is_a_formula():
    summary = summarize(comparison())
    row, texts = summary.rows[0], ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r\n=1"]
    changed = dataclasses.replace(summary, rows=[dataclasses.replace(row, label=text) for text in texts])
    lines = list(csv.DictReader(io.StringIO(summary_csv(changed), newline="")))
    assert [line["label"] for line in lines] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "\\u0009=1", "\\u000d\\u000a=1"]
    assert {float(line["score.mean"]) for line in lines} == {row.score.mean}  # also negative numbers are unchanged


def test_the_csv_file_has_the_exact_numbers_of_the_rows():
    summary = summarize(comparison())
    lines = list(csv.DictReader(summary_csv(summary).splitlines()))
    for line, row in zip(lines, summary.rows, strict=True):
        assert line["label"] == row.label
        assert float(line["score.mean"]) == row.score.mean
        difference = line["to_plain.difference.mean"]
        assert difference == ("" if row.to_plain is None else repr(row.to_plain.difference.mean))
        assert float(line["by_domain.glyphs:dingbats.mean"]) == row.by_domain["glyphs:dingbats"].mean

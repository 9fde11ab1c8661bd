"""Comparing workloads of fixed durations: orders, budgets, ratios within rounds, columns, notes, failures, memory."""

import math

import pytest
import torch

from gradhomog.errors import GradhomogError, PluginRunError
from gradhomog.experiments.profiling.harness import measure_all, peak_bytes, round_order
from tests.benchmarks.columns import Column, ComparisonWithColumns


class Recorder:
    """Workloads of fixed durations, a clock that only they advance, and a record of their calls."""

    def __init__(self, **durations: float) -> None:
        self.now, self.calls = 0.0, []
        self.workloads = {label: self._workload(label, taken) for label, taken in durations.items()}

    def _workload(self, label, taken):
        def workload(given):
            self.calls.append((given, label))
            self.now += taken * given

        return workload

    def comparison(self, **more):
        settings = {"min_rounds": 1, "with_memory": False, **more}
        return ComparisonWithColumns("title", self.workloads, lambda number: number + 1, "a", **settings)

    def time(self, rounds=6, seconds=math.inf, **more):
        return self.comparison(**more).time(rounds, seconds, lambda: self.now, lambda done, total: None)

    def measure(self, rounds=6, **more):
        return self.comparison(**more).measure(rounds, math.inf, lambda: self.now)


@pytest.mark.parametrize("count", range(1, 8))
def test_over_two_rounds_per_workload_every_workload_is_in_every_position_twice(count):
    labels = [f"workload {index}" for index in range(count)]
    orders = [round_order(labels, number) for number in range(2 * count)]
    for found in orders:
        assert sorted(found) == labels
    for place in range(count):
        assert sorted(found[place] for found in orders) == sorted(labels * 2)
    assert orders[1] == orders[0][::-1]


def test_all_workloads_run_on_the_same_input_in_the_order_of_the_round():
    recorder = Recorder(a=1, b=1, c=1)
    recorder.time(rounds=5)
    assert recorder.calls == [(number + 1, label) for number in range(6) for label in round_order("abc", number)]


def test_a_ratio_is_to_the_reference_in_the_same_round():
    # Round r takes r + 1 times as long: medians of seconds would move, ratios do not.
    timings = Recorder(a=2, b=3, c=1).time(warm_up=2, rounds=4)
    assert list(timings.measured_seconds("b").values()) == [9.0, 12.0, 15.0, 18.0]
    for label, ratio in {"a": 1.0, "b": 1.5, "c": 0.5}.items():
        found = timings.ratio(label, "a")
        assert {own / other for own, other in timings.pairs(label, "a")} == {ratio}
        assert (found.median, found.n) == (ratio, 4)


def test_with_a_shared_budget_all_stop_together_but_not_before_min_rounds():
    spent = Recorder(a=1, b=1).time(seconds=7, rounds=100)  # 2, 4 and 6 seconds: 6 < 7 after two rounds, 12 after three
    assert {label: len(taken) for label, taken in spent.seconds.items()} == {"a": 3, "b": 3}
    least = Recorder(a=1, b=1).time(seconds=1e-9, min_rounds=5, rounds=100)
    assert {label: len(taken) for label, taken in least.seconds.items()} == {"a": 5, "b": 5}


def test_without_a_shared_budget_each_has_an_equal_share():
    timings = Recorder(a=0.01, slow=50).time(seconds=100, rounds=20, shared_budget=False)
    assert len(timings.seconds["a"]) == 21
    assert timings.measured_seconds("slow") == {0: 50.0}


def test_a_workload_that_fails_is_reported_and_the_others_continue():
    recorder = Recorder(a=1, b=1, c=1)

    def fail(given):
        if given == 3:
            raise PluginRunError("out of ideas")

    recorder.workloads["b"] = fail
    timings = recorder.time()
    assert timings.failures == {"b": "out of ideas"}
    assert list(timings.seconds["b"]) == [0, 1]
    assert len(timings.seconds["a"]) == len(timings.seconds["c"]) == 7
    assert [row.label for row in recorder.measure().rows] == ["a", "c"]


def test_an_error_of_the_reference_is_raised():
    recorder = Recorder(a=1, b=1)
    recorder.workloads["a"] = lambda given: (_ for _ in ()).throw(PluginRunError("no plain learner"))
    with pytest.raises(GradhomogError, match="no plain learner"):
        recorder.time()


def test_further_references_and_given_columns_follow_the_first_ratio():
    made = lambda timings: [Column("over a", {"b": timings.ratio("b", "a")}, str), Column("none", {}, str)]  # noqa: E731
    table = Recorder(a=1, b=1.5, c=3).measure(rounds=1, others=("c",), columns=made)
    found = {column.title: {k: value.median for k, value in column.values.items()} for column in table.columns}
    # The only measured round is the second, which takes twice as long.
    assert found == {"to c": {"a": 1 / 3, "b": 0.5}, "over a": {"b": 1.5}}
    assert Recorder(a=1, b=1).measure().columns == ()


def test_memory_and_state_are_measured_before_columns_by_one_further_call_on_the_first_input():
    kept = []
    workloads = {"a": lambda given: kept.append(torch.ones(given, 250)), "b": lambda given: None}
    comparison = ComparisonWithColumns(
        "title", workloads, lambda number: number + 1, "a",
        state=lambda workload: {"memory": torch.zeros(5)} if workload is workloads["b"] else None,
        columns=lambda timings: [Column("calls", {"a": float(len(kept))}, str)],
    )  # fmt: skip
    table = comparison.measure(2, math.inf)
    assert [(row.peak_bytes, row.state_bytes) for row in table.rows] == [(1000, 0), (0, 20)]
    assert [(column.title, column.values) for column in table.columns] == [("calls", {"a": 4.0})]


def test_comparisons_have_equal_shares_of_the_time_and_the_number_of_threads_is_restored():
    before, seen = torch.get_num_threads(), []
    recorders = [Recorder(a=1), Recorder(a=1)]
    comparisons = [recorder.comparison() for recorder in recorders]
    ticks = iter(range(10**6))
    progress = lambda done, total: seen.append((done, torch.get_num_threads(), len(comparisons)))  # noqa: E731
    tables = measure_all(
        comparisons,
        thread_count=before + 1,
        rounds=100,
        seconds=24,
        clock=lambda: float(next(ticks)),
        progress=progress,
    )
    assert [table.rows[0].seconds.n for table in tables] == [3, 3]  # 12 of 24 readings, three per round, and a warm-up
    assert seen == [(done, before + 1, left) for left in (1, 0) for done in (1, 2, 3, 4)]
    assert torch.get_num_threads() == before


def test_peak_memory_counts_what_is_live_at_one_time():
    kilobyte = 1024

    def workload():
        one = torch.empty(64 * kilobyte, dtype=torch.uint8)
        two = torch.empty(32 * kilobyte, dtype=torch.uint8)
        del one
        three = torch.empty(48 * kilobyte, dtype=torch.uint8)
        return two, three

    assert peak_bytes(workload) == 96 * kilobyte
    assert peak_bytes(lambda: None) == 0

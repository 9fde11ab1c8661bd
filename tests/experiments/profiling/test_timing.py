"""Timing workloads in turn: orders, budgets, ratios within rounds, failures."""

from __future__ import annotations

import math

import pytest
import torch
from gradhomog.experiments.profiling.timing import Timings, interleave, round_order

from gradhomog.errors import GradhomogError, PluginRunError
from gradhomog.experiments.execution.threads import threads


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

    def run(self, **more):
        settings = {"rounds": 6, "seconds": math.inf, "min_rounds": 1, "shared_budget": True, "reference": "a"}
        return interleave(self.workloads, lambda number: number + 1, clock=lambda: self.now, **{**settings, **more})


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
    recorder.run(rounds=5)
    expected = [(number + 1, label) for number in range(6) for label in round_order("abc", number)]
    assert recorder.calls == expected


def test_a_ratio_is_to_the_reference_in_the_same_round():
    # Round r takes r + 1 times as long: medians of seconds would move, ratios do not.
    timings = Recorder(a=2, b=3, c=1).run(warm_up=2, rounds=4)
    assert timings.ratios("b", "a") == [1.5] * 4
    assert timings.ratios("c", "a") == [0.5] * 4
    assert timings.ratios("a", "a") == [1.0] * 4
    assert list(timings.measured_seconds("b").values()) == [9.0, 12.0, 15.0, 18.0]


def test_warm_up_rounds_are_used_only_for_a_workload_without_other_rounds():
    timings = Timings(1, {"a": {0: 9.0, 1: 2.0}, "b": {0: 5.0}})
    assert timings.measured_seconds("a") == {1: 2.0}
    assert timings.measured_seconds("b") == {0: 5.0}


def test_with_a_shared_budget_all_stop_together_but_not_before_min_rounds():
    spent = Recorder(a=1, b=1).run(seconds=7, rounds=100)  # 2, 4 and 6 seconds: 6 < 7 after two rounds, 12 after three
    assert {label: len(taken) for label, taken in spent.seconds.items()} == {"a": 3, "b": 3}
    least = Recorder(a=1, b=1).run(seconds=1e-9, min_rounds=5, rounds=100)
    assert {label: len(taken) for label, taken in least.seconds.items()} == {"a": 5, "b": 5}


def test_without_a_shared_budget_each_has_an_equal_share():
    timings = Recorder(a=0.01, slow=50).run(seconds=100, rounds=20, shared_budget=False)
    assert len(timings.seconds["a"]) == 21
    assert list(timings.seconds["slow"]) == [0]
    assert timings.measured_seconds("slow") == {0: 50.0}


def test_a_workload_that_fails_is_reported_and_the_others_continue():
    recorder = Recorder(a=1, b=1, c=1)

    def fail(given):
        if given == 3:
            raise PluginRunError("out of ideas")

    recorder.workloads["b"] = fail
    timings = recorder.run()
    assert timings.failures == {"b": "out of ideas"}
    assert list(timings.seconds["b"]) == [0, 1]
    assert len(timings.seconds["a"]) == len(timings.seconds["c"]) == 7


def test_an_error_of_the_reference_is_raised():
    recorder = Recorder(a=1, b=1)
    recorder.workloads["a"] = lambda given: (_ for _ in ()).throw(PluginRunError("no plain learner"))
    with pytest.raises(GradhomogError, match="no plain learner"):
        recorder.run()


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before

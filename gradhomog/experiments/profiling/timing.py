"""Time several workloads alternately on the same inputs, so that load of the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradhomog.errors import GradhomogError

Workload = Callable[[Any], object]
"""A function that is timed; called with the input of a round, its result is ignored."""

Progress = Callable[[int, int], None]
"""Called after every round with the number of finished rounds and the maximum number of rounds."""


@dataclass
class Timings:
    """Seconds by workload and round.

    Attributes:
        warm_up: number of warm-up rounds; they are used only for a workload without later rounds.
        seconds: seconds, by label and round.
        failures: message of the error after which a workload was not called again, by label.
    """

    warm_up: int
    seconds: dict[str, dict[int, float]]
    failures: dict[str, str] = field(default_factory=dict)

    def measured_seconds(self, label: str) -> dict[int, float]:
        """The seconds of a workload by round, without warm-up rounds; with them if it has no later rounds."""
        by_round = self.seconds[label]
        return {number: seconds for number, seconds in by_round.items() if number >= self.warm_up} or by_round

    def pairs(self, label: str, reference: str) -> list[tuple[float, float]]:
        """The measured seconds of a workload and of the reference, for each round that has both."""
        others = self.measured_seconds(reference)
        own = self.measured_seconds(label)
        return [(seconds, others[number]) for number, seconds in own.items() if number in others]

    def ratios(self, label: str, reference: str) -> list[float]:
        """The seconds of a workload divided by those of the reference, for each round of `pairs`."""
        return [seconds / other for seconds, other in self.pairs(label, reference)]


def round_order(labels: Sequence[str], number: int) -> list[str]:
    """The order of workloads in a round: rotated by one position every second round, and reversed in odd rounds.

    Over 2 · len(labels) rounds every workload is in every position twice, and a linear drift over two rounds cancels.
    """
    start = (number // 2) % len(labels)
    rotated = [*labels[start:], *labels[:start]]
    return rotated[::-1] if number % 2 else rotated


def interleave(
    workloads: Mapping[str, Workload],
    inputs: Callable[[int], Any],
    *,
    reference: str,
    rounds: int,
    seconds: float,
    min_rounds: int,
    shared_budget: bool,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] = lambda: None,
    progress: Progress = lambda done, total: None,
) -> Timings:
    """Call every workload once per round, all on the same input, in an order that rotates.

    Args:
        workloads: functions to time, by label.
        inputs: creates the input of round 0, 1, 2, …; not timed.
        reference: the workload that the others are compared with; if it fails, its error is raised.
        rounds: the maximum number of rounds after the warm-up.
        seconds: time budget.
        min_rounds: number of rounds, including warm-up, that every workload is called regardless of the budget.
        shared_budget: if True, all workloads stop when the budget is spent, so all have the same rounds. Otherwise each
            has an equal share of the budget, so a slow workload has fewer rounds.
        warm_up: number of warm-up rounds.
        synchronize: called before the clock is read, for asynchronous devices.

    Raises:
        GradhomogError: the error of the reference. The message of the error of another workload is stored in
            `failures`, and the workload is not called again.
    """
    timings = Timings(warm_up, {label: {} for label in workloads})
    spent = dict.fromkeys(workloads, 0.0)
    started = clock()

    def within_share(label: str, number: int) -> bool:
        last = timings.seconds[label].get(number - 1)  # None if it was not called in the last round; it has stopped
        return last is not None and spent[label] + last <= seconds / len(workloads)

    for number in range(warm_up + rounds):
        within_budget = clock() - started < seconds
        selected = [
            label
            for label in round_order(list(workloads), number)
            if label not in timings.failures
            and (number < min_rounds or (within_budget if shared_budget else within_share(label, number)))
        ]
        if not selected:
            break
        round_input = inputs(number)
        for label in selected:
            synchronize()
            start = clock()
            try:
                workloads[label](round_input)
            except GradhomogError as error:
                if label == reference:
                    raise
                timings.failures[label] = str(error)
                continue
            synchronize()
            timings.seconds[label][number] = elapsed = clock() - start
            spent[label] += elapsed
        progress(number + 1, warm_up + rounds)
    return timings

"""Time workloads alternately on the same inputs, measure their memory, and tabulate their ratios to a reference.

The only timing harness: `gradhomog profile` compares pipelines with the plain learner, `gradhomog diagnose` training
steps, and `tests/benchmarks` operations with other libraries. Load of the machine affects all workloads of a round.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradhomog.errors import GradhomogError
from gradhomog.experiments.environment import threads
from gradhomog.experiments.results.events import json_compatible
from gradhomog.table import LEVEL, NOTHING, Table


@dataclass(frozen=True)
class Quantiles:
    """The median of n values, with its 95 % confidence interval.

    Attributes:
        low, high: the interval of the median; NaN for fewer than six values, which have no interval at 95 %.
    """

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """Compute the median of values.

        The interval is that of order statistics: the k-th smallest to the k-th largest value, for the largest k with
        2 · P(Binomial(n, 1/2) < k) ≤ 0.05. It is valid for independent values of any distribution.
        """
        ordered = sorted(values)
        n = len(ordered)
        rank, tail = 0, 1
        while 2 * tail <= (1 - LEVEL) * 2**n:
            rank += 1
            tail += math.comb(n, rank)
        return cls(
            statistics.median(ordered),
            ordered[rank - 1] if rank else math.nan,
            ordered[n - rank] if rank else math.nan,
            n,
        )  # fmt: skip


@dataclass(frozen=True)
class TimingRow:
    """The measurements of one workload.

    Attributes:
        seconds: time of a call.
        ratio: ratio of its time to that of the reference.
        peak_bytes: see the function `peak_bytes`; None if not measured.
        state_bytes: size of the state of its homogenizers.
    """

    label: str
    seconds: Quantiles
    ratio: Quantiles
    peak_bytes: int | None = None
    state_bytes: int = 0


def ratio_cell(ratio: Quantiles) -> str:
    """The median: `× 1.04`, or a fraction if it is small: `1/52`."""
    median = ratio_text(ratio.median)
    return median if "/" in median else f"× {median}"


@dataclass(frozen=True)
class TimingTable:
    """Workloads that were timed alternately.

    Attributes:
        reference: label of the workload that the others are compared with.
        notes: lines that explain the numbers.
        failures: the message of each workload that failed, by label.
    """

    title: str
    reference: str
    rows: tuple[TimingRow, ...]
    notes: tuple[str, ...]
    failures: dict[str, str] = field(default_factory=dict)

    def added_bytes(self, row: TimingRow) -> int | None:
        """Memory in addition to that of the reference, including the state; None if not measured."""
        base = next((other for other in self.rows if other.label == self.reference), None)
        if base is None or base.peak_bytes is None or row.peak_bytes is None:
            return None
        return row.peak_bytes + row.state_bytes - base.peak_bytes - base.state_bytes

    def table(self) -> Table:
        """The table of texts, with notes and failures."""
        with_memory = any(row.peak_bytes is not None for row in self.rows)
        header = ["method", "time", f"to {self.reference}", "95 %", *(["memory"] if with_memory else []), "rounds"]
        lines = []
        for row in self.rows:
            is_reference = row.label == self.reference
            ratio = [NOTHING, NOTHING] if is_reference else [ratio_cell(row.ratio), interval_cell(row.ratio)]
            used = [self._memory(row)] if with_memory else []
            lines.append([row.label, time_text(row.seconds.median), *ratio, *used, str(row.seconds.n)])
        failed = [f"Failed: {label}: {message}" for label, message in self.failures.items()]
        return Table(header, lines, [*self.notes, *failed])

    def render(self) -> str:
        """Title and table as text."""
        return f"{self.title}\n\n{self.table().text()}"

    def record(self) -> dict[str, Any]:
        """The table as plain data for JSON, in seconds, ratios and bytes."""
        content: dict[str, Any] = json_compatible(asdict(self))
        for row, entry in zip(self.rows, content["rows"], strict=True):
            entry["added_bytes"] = self.added_bytes(row)
        return content

    def _memory(self, row: TimingRow) -> str:
        """Memory as text: the total for the reference, the difference to it for other rows."""
        if row.label == self.reference and row.peak_bytes is not None:
            return f"{three_digits((row.peak_bytes + row.state_bytes) / 1e6)} MB"
        added = self.added_bytes(row)
        return NOTHING if added is None else f"{signed(added / 1e6)} MB"


def interval_cell(ratio: Quantiles) -> str:
    """The interval of the median: `1.02 – 1.06`; `n/a` without an interval."""
    return "n/a" if math.isnan(ratio.low) else f"{ratio_text(ratio.low)} – {ratio_text(ratio.high)}"


def ratio_text(value: float) -> str:
    """A ratio as text: `1.04`, `29.3`, or a fraction if it is small: `1/52`."""
    if 0 < value < 0.25:
        return f"1/{1 / value:.3g}" if value > 0.001 else f"1/{1 / value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def time_text(seconds: float) -> str:
    """A time with three digits, in seconds, milliseconds, microseconds or nanoseconds."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{three_digits(seconds * factor)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def signed(value: float) -> str:
    """As `three_digits`, with a sign: `+0.00`, `-1.25`."""
    text = three_digits(abs(value))
    return f"{'-' if value < 0 and float(text.replace(',', '')) else '+'}{text}"


def three_digits(value: float) -> str:
    """A number with three significant digits and at most two decimals, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def peak_bytes(work: Callable[[], object]) -> int:
    """The peak number of bytes of CPU tensors that a call allocates and that are live at the same time.

    Counts every allocation by PyTorch's CPU allocator in this thread, from the profiler's memory events: tensors, saved
    activations and temporaries. Unlike the peak memory of the process, it depends neither on earlier calls nor on the
    load of the machine. It does not count scratch memory of libraries such as oneDNN and MKL, allocations of intra-op
    threads, and the release of tensors that were allocated before the call. (For a convolution, its backward pass, and
    sums of several tensors of 34 MB it differed by less than 0.2 % from the growth of the process's resident memory,
    VmHWM after a reset.)
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes two lines to stderr in each call
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        work()
    assert profiler.kineto_results is not None
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def tensor_bytes(state: object) -> int:
    """The bytes of all tensors in nested dicts and lists."""
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, dict):
        return sum(map(tensor_bytes, state.values()))
    return sum(map(tensor_bytes, state)) if isinstance(state, (list, tuple)) else 0


Workload = Callable[[Any], object]
"""A function that is timed; called with the input of a round, its result is ignored."""

CPU = torch.device("cpu")

Clock = Callable[[], float]

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

    @property
    def finished(self) -> list[str]:
        """Labels of workloads that were timed and did not fail."""
        return [label for label, by_round in self.seconds.items() if by_round and label not in self.failures]

    def measured_seconds(self, label: str) -> dict[int, float]:
        """The seconds of a workload by round, without warm-up rounds; with them if it has no later rounds."""
        by_round = self.seconds[label]
        return {number: seconds for number, seconds in by_round.items() if number >= self.warm_up} or by_round

    def pairs(self, label: str, reference: str) -> list[tuple[float, float]]:
        """The measured seconds of a workload and of the reference, for each round that has both."""
        others = self.measured_seconds(reference)
        own = self.measured_seconds(label)
        return [(seconds, others[number]) for number, seconds in own.items() if number in others]

    def ratio(self, label: str, reference: str) -> Quantiles:
        """The seconds of a workload divided by those of the reference, over the rounds of `pairs`."""
        return Quantiles.of([seconds / other for seconds, other in self.pairs(label, reference)])


@dataclass(frozen=True)
class Comparison:
    """Workloads on the same inputs, and how they are timed and compared.

    Attributes:
        workloads: functions to time, by label.
        inputs: creates the input of round 0, 1, 2, …; not timed.
        reference: label of the workload that the others are compared with, whose error is raised if it fails.
        notes: lines that explain the numbers, in the order of the table.
        warm_up: number of warm-up rounds.
        min_rounds: number of rounds, including warm-up, that every workload is called regardless of the budget.
        device: the clock is read when the device has finished; memory is measured on the CPU only.
        with_memory: if True, every workload is called once more, with the input of round 0, to measure its peak memory.
        state: returns the state of a workload, whose tensors are added to its memory.
    """

    title: str
    workloads: Mapping[str, Workload]
    inputs: Callable[[int], Any]
    reference: str
    notes: tuple[str, ...] = ()
    warm_up: int = 1
    min_rounds: int = 2
    device: torch.device = CPU
    with_memory: bool = True
    state: Callable[[Any], object] = lambda workload: None

    def measure(
        self,
        rounds: int,
        seconds: float,
        clock: Clock = time.perf_counter,
        progress: Progress = lambda done, total: None,
    ) -> TimingTable:
        """Time the workloads, then measure their memory.

        Args:
            rounds: the maximum number of rounds after the warm-up.
            seconds: time budget.

        Raises:
            GradhomogError: the error of the first reference. The message of the error of another workload is in
                `TimingTable.failures`.
        """
        timings = self.time(rounds, seconds, clock, progress)
        peaks, states = {}, {}
        with_memory = self.with_memory and self.device.type == "cpu"
        if with_memory:
            first_input = self.inputs(0)
            for label in timings.finished:
                workload = self.workloads[label]
                peaks[label] = peak_bytes(functools.partial(workload, first_input))
                states[label] = tensor_bytes(self.state(workload))
        rows = tuple(
            TimingRow(
                label,
                Quantiles.of([*timings.measured_seconds(label).values()]),
                timings.ratio(label, self.reference),
                peaks.get(label),
                states.get(label, 0),
            )
            for label in timings.finished
        )
        return self.table(timings, rows, (*self.notes, *self.method_notes(clock, with_memory)))

    def table(self, timings: Timings, rows: tuple[TimingRow, ...], notes: tuple[str, ...]) -> TimingTable:
        """The table of the measured workloads."""
        return TimingTable(self.title, self.reference, rows, notes, timings.failures)

    def time(self, rounds: int, seconds: float, clock: Clock, progress: Progress) -> Timings:
        """Call every workload once per round, all on the same input, in the order of `round_order`."""
        timings = Timings(self.warm_up, {label: {} for label in self.workloads})
        started = clock()
        for number in range(self.warm_up + rounds):
            spent = clock() - started
            selected = [
                label
                for label in round_order(list(self.workloads), number)
                if label not in timings.failures
                and (number < self.min_rounds or self.within_budget(label, number, timings, spent, seconds))
            ]
            if not selected:
                break
            round_input = self.inputs(number)
            for label in selected:
                self._synchronize()
                start = clock()
                try:
                    self.workloads[label](round_input)
                except GradhomogError as error:
                    if label == self.reference:
                        raise
                    timings.failures[label] = str(error)
                    continue
                self._synchronize()
                timings.seconds[label][number] = clock() - start
            progress(number + 1, self.warm_up + rounds)
        return timings

    def within_budget(self, label: str, number: int, timings: Timings, spent: float, seconds: float) -> bool:
        """True if a workload is called in this round, after `spent` of all seconds; all workloads stop together."""
        return spent < seconds

    def method_notes(self, clock: Clock, with_memory: bool) -> list[str]:
        """Notes on how the numbers were measured."""
        count, reference = torch.get_num_threads(), self.reference
        rounds = "1 warm-up round is" if self.warm_up == 1 else f"{self.warm_up} warm-up rounds are"
        notes = [
            f"All took turns on the same inputs, on {self.device}, with {count} thread{'s' if count > 1 else ''}; "
            f"{rounds} not included, except where there is no other round.",
            f"to {reference}: median over rounds of (its time / time of {reference} in the same round).",
            "95 %: confidence interval of the median to its left, by order statistics; n/a for fewer than six rounds.",
        ]
        if with_memory:
            notes += [
                "memory: peak of the CPU tensors that one additional call allocates, without scratch memory of "
                f"libraries, and the state of homogenizers; for others than {reference}, the difference."
            ]
        if clock is time.process_time:
            notes.append("Times are processor time of this process; waiting is not included.")
        return notes

    def _synchronize(self) -> None:
        """Wait for asynchronous operations on a CUDA device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure_all(
    comparisons: list[Comparison],
    *,
    thread_count: int,
    rounds: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    progress: Progress = lambda done, total: None,
) -> list[TimingTable]:
    """Measure comparisons one after the other with this number of threads, each with an equal share of the time.

    Inputs may need most of the memory, so each comparison is removed from the list before the next one is measured.
    """
    share = seconds / len(comparisons)
    with threads(thread_count):
        return [comparisons.pop(0).measure(rounds, share, clock, progress) for _ in range(len(comparisons))]


def round_order(labels: Sequence[str], number: int) -> list[str]:
    """The order of workloads in a round: rotated by one position every second round, and reversed in odd rounds.

    Over 2 · len(labels) rounds every workload is in every position twice, and a linear drift over two rounds cancels.
    """
    start = (number // 2) % len(labels)
    rotated = [*labels[start:], *labels[:start]]
    return rotated[::-1] if number % 2 else rotated

"""A benchmark on inputs of one shape: time the workloads, and compare them with references."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradhomog.experiments.profiling import memory
from gradhomog.experiments.profiling.quantiles import Quantiles
from gradhomog.experiments.profiling.table import Table, TimingRow
from gradhomog.experiments.profiling.timing import Progress, Timings, Workload, interleave
from tests.benchmarks.comparison import Column, Comparison, cosines, differences, ratios

Clock = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """The workloads on inputs of one shape, and how they are timed and compared.

    Attributes:
        inputs: creates the input of round 0, 1, 2, ….
        references: labels of the workloads that the others are compared with; memory is compared with the first.
        min_rounds: number of rounds, including warm-up, that every workload is called regardless of the budget.
        shared_budget: True if all workloads have the same rounds; otherwise each has an equal share of the time.
        paired: if True, ratios are computed within each round that both workloads have (at least one is required);
            otherwise, they are ratios to the median time of the reference.
        with_memory: if True, every workload is called once more to measure its peak memory.
        difference: if True, a column has the difference to the first reference in seconds; requires `paired`.
        peers: the label of an additional workload to compare with, by label.
        cosine: computes, after the call for memory, the cosine between the gradient of a workload and the exact
            gradient; None if the workload has no such cosine.
    """

    workloads: dict[str, Workload]
    inputs: Callable[[int], Any]
    references: tuple[str, ...]
    title: str
    notes: tuple[str, ...]
    min_rounds: int = 1
    shared_budget: bool = False
    paired: bool = False
    with_memory: bool = True
    difference: bool = False
    peers: Mapping[str, str] = field(default_factory=dict)
    cosine: Callable[[Workload], float | None] = lambda workload: None

    def compare(self, rounds: int, seconds: float, thread_count: int, clock: Clock, progress: Progress) -> Comparison:
        """Time the workloads and return the table."""
        timings = interleave(
            self.workloads, self.inputs, reference=self.references[0], rounds=rounds, seconds=seconds,
            min_rounds=self.min_rounds, shared_budget=self.shared_budget, clock=clock, progress=progress,
        )  # fmt: skip
        peaks: dict[str, int] = {}
        cosine_values: dict[str, float | None] = {}
        if self.with_memory:
            first_input = self.inputs(0)
            for label, workload in self.workloads.items():
                if label not in timings.failures:
                    peaks[label] = memory.peak_bytes(functools.partial(workload, first_input))
                    cosine_values[label] = self.cosine(workload)
        title = f"{self.title}, {thread_count} thread{'s' if thread_count > 1 else ''}"
        table = Table(title, self.references[0], self.rows(timings, peaks), self.notes, timings.failures)
        return Comparison(table, self.columns(timings, cosine_values))

    def rows(self, timings: Timings, peaks: Mapping[str, int]) -> tuple[TimingRow, ...]:
        """One row per workload that did not fail, with its ratio to the first reference."""
        return tuple(
            TimingRow(label, Quantiles.of([*timings.measured_seconds(label).values()]), ratio, peaks.get(label))
            for label, ratio in self._ratios(timings, self.references[0]).items()
        )

    def columns(self, timings: Timings, cosine_values: Mapping[str, float | None]) -> tuple[Column, ...]:
        """Ratios to further references, differences, ratios to peers, and cosines; empty columns are omitted."""
        first, *others = self.references
        columns = []
        for reference in others:
            to_reference = self._ratios(timings, reference)
            columns.append(ratios(f"to {reference}", {k: v for k, v in to_reference.items() if k != reference}))
        if self.difference:
            pairs = {label: timings.pairs(label, first) for label in self._finished(timings) if label != first}
            over_first = {
                label: Quantiles.of([seconds - other for seconds, other in both]) for label, both in pairs.items()
            }
            columns.append(differences(f"over {first}", {**over_first}))
        finished = self._finished(timings)
        peers = {label: peer for label, peer in self.peers.items() if label in finished and peer in finished}
        columns.append(ratios("to peer", {k: Quantiles.of(timings.ratios(k, peer)) for k, peer in peers.items()}))
        columns.append(cosines({label: value for label, value in cosine_values.items() if value is not None}))
        return tuple(column for column in columns if column.values)

    def _finished(self, timings: Timings) -> list[str]:
        """Labels of workloads that were timed and did not fail."""
        return [label for label, rounds in timings.seconds.items() if rounds and label not in timings.failures]

    def _ratios(self, timings: Timings, reference: str) -> dict[str, Quantiles]:
        if self.paired:
            return {label: Quantiles.of(timings.ratios(label, reference)) for label in self._finished(timings)}
        median = statistics.median(timings.measured_seconds(reference).values())
        return {
            label: Quantiles.of([seconds / median for seconds in timings.measured_seconds(label).values()])
            for label in self._finished(timings)
        }

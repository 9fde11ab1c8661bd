"""A benchmark on inputs of one shape: time its works, and compare each with the references."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradhomog.experiments.profiling import memory
from gradhomog.experiments.profiling.quantiles import Quantiles
from gradhomog.experiments.profiling.table import Row, Table
from gradhomog.experiments.profiling.timing import Progress, Timings, Work, interleave
from tests.benchmarks.comparison import Column, Comparison, cosines, differences, ratios

Clock = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """The works on inputs of one shape, and how they are timed and compared.

    Attributes:
        inputs: makes the input of round 0, 1, 2, ….
        references: labels of the works that the others are compared with; memory is compared with the first.
        at_least: rounds, the warm-up included, that every work is run regardless of the budget.
        together: all works have the same rounds; otherwise each has an equal share of the time.
        paired: a ratio is formed within each round that both works were in, of which there must be one; otherwise it is
            to the median of the other's times.
        with_memory: run every work once more for its peak memory.
        difference: show the difference to the first reference in seconds, too; for `paired` works.
        peers: for a work's label the label of the one that it is compared with besides.
        cosine: after that further run, between the gradient of a work and the exact one; None if it has none.
    """

    works: dict[str, Work]
    inputs: Callable[[int], Any]
    references: tuple[str, ...]
    title: str
    notes: tuple[str, ...]
    at_least: int = 1
    together: bool = False
    paired: bool = False
    with_memory: bool = True
    difference: bool = False
    peers: Mapping[str, str] = field(default_factory=dict)
    cosine: Callable[[Work], float | None] = lambda work: None

    def compare(self, rounds: int, seconds: float, thread_count: int, clock: Clock, progress: Progress) -> Comparison:
        """Time the works."""
        timings = interleave(
            self.works, self.inputs, reference=self.references[0], rounds=rounds, seconds=seconds,
            at_least=self.at_least, together=self.together, clock=clock, progress=progress,
        )  # fmt: skip
        peaks: dict[str, int] = {}
        found: dict[str, float | None] = {}
        if self.with_memory:
            given = self.inputs(0)
            for label, work in self.works.items():
                if label not in timings.failures:
                    peaks[label] = memory.peak_bytes(functools.partial(work, given))
                    found[label] = self.cosine(work)
        title = f"{self.title}, {thread_count} thread{'s' if thread_count > 1 else ''}"
        table = Table(title, self.references[0], self.rows(timings, peaks), self.notes, timings.failures)
        return Comparison(table, self.columns(timings, found))

    def rows(self, timings: Timings, peaks: Mapping[str, int]) -> tuple[Row, ...]:
        """One row per work that did not fail, with its ratio to the first reference."""
        return tuple(
            Row(label, Quantiles.of([*timings.counted(label).values()]), ratio, peaks.get(label))
            for label, ratio in self._ratios(timings, self.references[0]).items()
        )

    def columns(self, timings: Timings, found: Mapping[str, float | None]) -> tuple[Column, ...]:
        """Ratios to further references, differences, ratios to peers, cosines: those that this case has."""
        first, *others = self.references
        columns = []
        for reference in others:
            to_reference = self._ratios(timings, reference)
            columns.append(ratios(f"to {reference}", {k: v for k, v in to_reference.items() if k != reference}))
        if self.difference:
            pairs = {label: timings.pairs(label, first) for label in self._done(timings) if label != first}
            slower = {label: Quantiles.of([taken - other for taken, other in both]) for label, both in pairs.items()}
            columns.append(differences(f"over {first}", {**slower}))
        done = self._done(timings)
        peers = {label: peer for label, peer in self.peers.items() if label in done and peer in done}
        columns.append(ratios("to peer", {k: Quantiles.of(timings.ratios(k, peer)) for k, peer in peers.items()}))
        columns.append(cosines({label: value for label, value in found.items() if value is not None}))
        return tuple(column for column in columns if column.values)

    def _done(self, timings: Timings) -> list[str]:
        return [label for label, taken in timings.seconds.items() if taken and label not in timings.failures]

    def _ratios(self, timings: Timings, reference: str) -> dict[str, Quantiles]:
        if self.paired:
            return {label: Quantiles.of(timings.ratios(label, reference)) for label in self._done(timings)}
        middle = statistics.median(timings.counted(reference).values())
        return {
            label: Quantiles.of([taken / middle for taken in timings.counted(label).values()])
            for label in self._done(timings)
        }

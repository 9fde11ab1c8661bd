"""A kernel beside its peers: for each input shape a trial, timed and made into a table."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradhomog.errors import OptionError
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.profiling import memory, table
from gradhomog.experiments.profiling.table import Table
from gradhomog.experiments.profiling.timing import Progress, Work, interleave

Shape = Sequence[int]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Trial:
    """The works on inputs of one shape, and what their table says.

    Attributes:
        inputs: makes the input of round 0, 1, 2, ….
        references: labels of works that others are compared with; the first is also that of memory.
        at_least: rounds, the warm-up included, that every work is given whatever they take.
        together: all works have the same rounds; else each has an equal share of the time.
        paired: ratios are formed within each round that both were in, of which there must be one; else a ratio is to
            the median of the other's times.
        with_memory: run every work once more for its peak memory.
        difference: tell by how many seconds each is slower than the first reference, too; for `paired` works.
        peers: for a work's label that of the one that it competes with, to which it is compared as well.
        cosine: after that further run, between what a work has found and what is right; None where it says nothing.
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

    def table(self, rounds: int, seconds: float, thread_count: int, clock: Clock, progress: Progress) -> Table:
        """Time the works."""
        timings = interleave(
            self.works, self.inputs, reference=self.references[0], rounds=rounds, seconds=seconds,
            at_least=self.at_least, together=self.together, clock=clock, progress=progress,
        )  # fmt: skip
        peaks: dict[str, int] = {}
        cosines: dict[str, float] = {}
        if self.with_memory:
            given = self.inputs(0)
            for label, work in self.works.items():
                if label not in timings.failures:
                    peaks[label] = memory.peak_bytes(functools.partial(work, given))
                    if (cosine := self.cosine(work)) is not None:
                        cosines[label] = cosine
        rows = table.rows(
            timings, self.references, paired=self.paired, peaks=peaks, held={}, cosines=cosines,
            difference=self.difference, peers=self.peers,
        )  # fmt: skip
        title = f"{self.title}, {thread_count} thread{'s' if thread_count > 1 else ''}"
        return Table(title, self.references, rows, self.notes, timings.failures)


@dataclass(frozen=True)
class Kernel:
    """What `--kernel NAME` times.

    Attributes:
        forms: what a shape may be, such as `tasks x queries x features`; told apart by the number of sizes.
        shapes: the default ones.
        trial: from expressions (of homogenizers or learners, none: the default ones) and a shape.
    """

    forms: tuple[str, ...]
    shapes: tuple[Shape, ...]
    trial: Callable[[Sequence[str], Shape], Trial]

    def __call__(
        self,
        expressions: Sequence[str] = (),
        shapes: Sequence[Shape] = (),
        *,
        rounds: int,
        seconds: float,
        thread_count: int = 1,
        clock: Clock = time.perf_counter,
        progress: Progress = lambda done, most: None,
    ) -> list[Table]:
        """One table per shape. All trials are made first, then timed one by one, with an equal share of the seconds.

        Raises:
            GradhomogError: an expression names nothing, or a shape is of none of the forms.
        """
        chosen = list(shapes or self.shapes)
        lengths = {form.count(" x ") + 1 for form in self.forms}
        for shape in chosen:
            if len(shape) not in lengths or min(shape) < 1:
                raise OptionError(
                    f"`--shape` must be {' or '.join(self.forms)}, each at least 1; got {'x'.join(map(str, shape))}."
                )
        with threads(thread_count):
            trials = [self.trial(expressions, shape) for shape in chosen]
            share = seconds / len(chosen)
            # What a trial has drawn may be as large as memory allows, so each goes when it is done.
            return [trials.pop(0).table(rounds, share, thread_count, clock, progress) for _ in chosen]

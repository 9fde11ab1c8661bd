"""Time spent in each homogenizer during the training steps of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gradhomog.experiments.results.events import Record
from gradhomog.step.member import Member


class HomogenizerTimer:
    """Wall-clock seconds spent in each homogenizer during training steps; probes are excluded.

    `seconds` has one entry per homogenizer. Set it to continue from a checkpoint.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = tuple(members)
        self.seconds = [0.0] * len(self._members)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add the time spent within the context."""
        before = [member.seconds for member in self._members]
        yield
        pairs = zip(self._members, self.seconds, before, strict=True)
        self.seconds = [total + member.seconds - start for member, total, start in pairs]

    def record(self) -> list[Record]:
        """Return one entry per homogenizer, for the record of a result."""
        return [
            {"homogenizer": member.selector, "plugin": str(member), "seconds": seconds}
            for member, seconds in zip(self._members, self.seconds, strict=True)
        ]

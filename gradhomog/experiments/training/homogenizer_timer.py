"""The time that each homogenizer takes of the training steps of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gradhomog.experiments.results.events import Record
from gradhomog.host.member import Member


class HomogenizerTimer:
    """The seconds that each homogenizer of a learner spends in training steps, not in probes.

    `seconds` is one number for each, by the clock; it may be set, to go on where a run was stopped.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = tuple(members)
        self.seconds = [0.0] * len(self._members)

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = [member.seconds for member in self._members]
        yield
        pairs = zip(self._members, self.seconds, before, strict=True)
        self.seconds = [total + member.seconds - start for member, total, start in pairs]

    def record(self) -> list[Record]:
        """One entry for each, for the record of a result."""
        return [
            {"homogenizer": member.selector, "plugin": str(member), "seconds": seconds}
            for member, seconds in zip(self._members, self.seconds, strict=True)
        ]

"""Which homogenizers take more of the training steps than all the rest: counted in a run, told under the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradhomog.bench.results import Record

if TYPE_CHECKING:
    from gradhomog.host.member import Member  # a report is made without torch

SHARE = 0.5
"""Of the time of training steps; a homogenizer above it is called slow."""


class Meter:
    """The seconds that each homogenizer of a learner spends in training steps, and not while a learner is looked at.

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


@dataclass(frozen=True)
class Slow:
    """A homogenizer that is slow in at least one method of a comparison; `share` and `label` are of the worst."""

    homogenizer: str
    plugin: str
    label: str
    share: float

    def __str__(self) -> str:
        return (
            f"Slow: {self.plugin} took {self.share:.0%} of the time of the training steps of {self.label}. "
            f"`gradhomog bench --homogenizer {self.homogenizer}` measures what it adds to a step."
        )


def slow(results: Iterable[Record]) -> tuple[Slow, ...]:
    """Those of all runs, each once, in the order in which they are met."""
    whole: dict[tuple[str, str], float] = {}  # of all steps of a method, by learner and label
    spent: dict[tuple[str, str, str, str], float] = {}
    for record in results:
        method = (record["learner"], record["label"])
        whole[method] = whole.get(method, 0.0) + (record["seconds"] or 0.0)
        for entry in record.get("homogenizer_seconds") or ():
            key = (entry["homogenizer"], entry["plugin"], *method)
            spent[key] = spent.get(key, 0.0) + (entry["seconds"] or 0.0)
    worst: dict[str, Slow] = {}
    for (homogenizer, plugin, learner, label), seconds in spent.items():
        share = seconds / whole[learner, label] if whole[learner, label] else 0.0
        if share > SHARE and (plugin not in worst or share > worst[plugin].share):
            worst[plugin] = Slow(homogenizer, plugin, label, share)
    return tuple(worst.values())

"""Time of each homogenizer in the training steps of runs, and those that take more than half of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradhomog.experiments.results.events import Record

if TYPE_CHECKING:
    from gradhomog.step.member import Member  # imports torch, which reports do not need

SLOW_SHARE = 0.5
"""A homogenizer is slow above this fraction of the time of training steps."""


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


@dataclass(frozen=True)
class SlowHomogenizer:
    """A homogenizer that is slow in a method of a comparison; `share` and `label` are of its slowest method."""

    homogenizer: str
    plugin: str
    label: str
    share: float

    def __str__(self) -> str:
        return (
            f"Slow: {self.plugin} took {self.share:.0%} of the time of the training steps of {self.label}. "
            f"`gradhomog profile --homogenizer {self.homogenizer}` measures its overhead."
        )


def find_slow_homogenizers(results: Iterable[Record]) -> tuple[SlowHomogenizer, ...]:
    """The slow homogenizers of all runs, each once, in the order of the records."""
    step_seconds: dict[tuple[str, str], float] = defaultdict(float)
    homogenizer_seconds: dict[tuple[str, str, str, str], float] = defaultdict(float)
    for record in results:
        method = (record["learner"], record["label"])
        step_seconds[method] += record["seconds"] or 0.0
        for entry in record.get("homogenizer_seconds") or ():
            homogenizer_seconds[entry["homogenizer"], entry["plugin"], *method] += entry["seconds"] or 0.0
    worst: dict[str, SlowHomogenizer] = {}
    for (homogenizer, plugin, learner, label), seconds in homogenizer_seconds.items():
        total = step_seconds[learner, label]
        share = seconds / total if total else 0.0
        if share > SLOW_SHARE and (plugin not in worst or share > worst[plugin].share):
            worst[plugin] = SlowHomogenizer(homogenizer, plugin, label, share)
    return tuple(worst.values())

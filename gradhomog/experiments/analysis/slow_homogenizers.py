"""Detection of homogenizers that take more than half the time of their training steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradhomog.experiments.results.events import Record

SLOW_SHARE = 0.5
"""A homogenizer is slow above this fraction of the time of training steps."""


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
    step_seconds: dict[tuple[str, str], float] = {}  # time of all steps, by learner and label
    homogenizer_seconds: dict[tuple[str, str, str, str], float] = {}
    for record in results:
        method = (record["learner"], record["label"])
        step_seconds[method] = step_seconds.get(method, 0.0) + (record["seconds"] or 0.0)
        for entry in record.get("homogenizer_seconds") or ():
            key = (entry["homogenizer"], entry["plugin"], *method)
            homogenizer_seconds[key] = homogenizer_seconds.get(key, 0.0) + (entry["seconds"] or 0.0)
    worst: dict[str, SlowHomogenizer] = {}
    for (homogenizer, plugin, learner, label), seconds in homogenizer_seconds.items():
        total = step_seconds[learner, label]
        share = seconds / total if total else 0.0
        if share > SLOW_SHARE and (plugin not in worst or share > worst[plugin].share):
            worst[plugin] = SlowHomogenizer(homogenizer, plugin, label, share)
    return tuple(worst.values())

"""Homogenizers that take more than half the time of their training steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradhomog.experiments.results.events import Record

SHARE = 0.5
"""The fraction of the time of training steps above which a homogenizer is slow."""


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
            f"`gradhomog profile --homogenizer {self.homogenizer}` measures what it adds to a step."
        )


def slow(results: Iterable[Record]) -> tuple[Slow, ...]:
    """The slow homogenizers of all runs, each once, in the order of the records."""
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

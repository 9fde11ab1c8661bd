"""Faulty memory: what grows with every step."""

from __future__ import annotations

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Clip, Drop, Lag, Turn


@fails("memory_constant", r"what it holds: \d+ bytes more with every step")
class WindowWithoutEnd(Lag):
    """A window that nothing ever leaves, of which only the end is looked at."""

    def update(self, evidence):
        for key, loss in zip(evidence.by("domain"), evidence.losses.tolist(), strict=True):
            self.losses.setdefault(key, []).append(loss)

    def mix(self, evidence):
        whole = self.losses
        self.losses = {key: losses[-self.size :] for key, losses in whole.items()}
        weights = super().mix(evidence)
        self.losses = whole
        return weights


@fails("memory_constant", r"the tensors of the process: \d+ bytes more with every step")
class KeepsRows(Clip):
    """Every row there was, for a figure."""

    def __init__(self):
        self.seen = []

    def scaled(self, block, scale):
        self.seen.append(block.clone())
        return super().scaled(block, scale)


@fails("memory_constant", r"what it holds: \d+ bytes more with every step")
class HistoryOfAll(Lag):
    """A list in the class, of all there ever were."""

    history = []  # noqa: RUF012

    def update(self, evidence):
        super().update(evidence)
        self.history.append(float(evidence.losses.sum()))


@fails("memory_constant", r"the tensors of the process: \d+ bytes more with every step")
class KeepsFeatures(Turn):
    """Every feature that it turned."""

    def transform(self, features, keys):
        self.seen = [*getattr(self, "seen", []), features.detach().clone()]
        return super().transform(features, keys)


@fails("memory_constant", r"the tensors of the process: \d+ bytes more with every step")
class KeepsMasks(Drop):
    """Masks by task, part and step, and none is ever looked at again."""

    def begin(self, key, part):
        self.kept = [*getattr(self, "kept", []), *self.masks.values()]
        super().begin(key, part)

"""Faulty memory: growth with every step."""

from __future__ import annotations

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Clip, Drop, Lag, Turn


@fails("memory_constant", r"the object grows by \d+ bytes with every step")
class WindowWithoutEnd(Lag):
    """A window that nothing ever leaves."""

    def update(self, step):
        losses = zip(step.by("domain"), step.losses.tolist(), strict=True)
        return {"losses": {key: [*self.losses.get(key, []), loss] for key, loss in losses}}


@fails("memory_constant", r"the tensors of the process grow by \d+ bytes with every step")
class KeepsRows(Clip):
    """Every row there was, for a figure."""

    def __init__(self):
        self.seen = []

    def scaled(self, block, scale):
        self.seen.append(block.clone())
        return super().scaled(block, scale)


@fails("memory_constant", r"the object grows by \d+ bytes with every step")
class HistoryOfAll(Lag):
    """A list of all losses, in the class."""

    history = []  # noqa: RUF012

    def update(self, step):
        self.history.append(float(step.losses.sum()))
        return super().update(step)


@fails("memory_constant", r"the tensors of the process grow by \d+ bytes with every step")
class KeepsFeatures(Turn):
    """Every feature that it turned."""

    def transform(self, features, keys):
        self.seen = [*getattr(self, "seen", []), features.detach().clone()]
        return super().transform(features, keys)


@fails("memory_constant", r"the tensors of the process grow by \d+ bytes with every step")
class KeepsMasks(Drop):
    """Masks by task, part and step, and none is read again."""

    def begin(self, key, part, generator):
        self.kept = [*getattr(self, "kept", []), *self.masks.values()]
        super().begin(key, part, generator)

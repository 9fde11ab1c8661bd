"""Homogenizers whose memory grows with every step."""

from __future__ import annotations

from tests.testing.faults import fails
from tests.testing.homogenizers.good import Drop, LossRatio


@fails("memory_constant", r"the object grows by \d+ bytes with every step")
class UnboundedWindow(LossRatio):
    """A window of losses that is never shortened."""

    def update(self, step):
        losses = zip(step.names, step.losses.tolist(), strict=True)
        return {"losses": {key: [*self.losses.get(key, []), loss] for key, loss in losses}}


@fails("memory_constant", r"the object grows by \d+ bytes with every step")
class ClassLevelHistory(LossRatio):
    """Keeps all losses in a class attribute."""

    history = []  # noqa: RUF012

    def update(self, step):
        self.history.append(float(step.losses.sum()))
        return super().update(step)


@fails("memory_constant", r"the tensors of the process grow by \d+ bytes with every step")
class KeepsMasks(Drop):
    """Keeps all masks."""

    def begin(self, key, part, generator):
        self.kept = [*getattr(self, "kept", []), *self.masks.values()]
        super().begin(key, part, generator)

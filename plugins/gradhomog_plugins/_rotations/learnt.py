"""Steps whose size is an angle, and the way back from an angle that is too large, for the learnt parameterisations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import Rotation

# A step that overshoots is halved until it does not; after 30 halvings there is nothing left to gain.
HALVINGS = 30


def ascend(
    parameter: Tensor, objective: Callable[[Tensor], Tensor], angle: Callable[[Tensor], Tensor], lr: float
) -> Tensor:
    """The parameter after a step along the gradient that turns by at most `lr`, and never lowers the objective.

    `angle` tells how far a change of the parameter turns. Normalised, not scaled by a rate: with Adam at 5e-4 on a
    dense m × m matrix one step turns 64 features by 0.04 radians and 1600 by more than 1.
    """
    with torch.enable_grad():
        variable = parameter.detach().requires_grad_()
        value = objective(variable)
        (gradient,) = torch.autograd.grad(value, variable)
    size = float(angle(gradient))
    if not size > 0:
        return parameter
    change = gradient * (lr / size)
    for _ in range(HALVINGS):
        if bool(objective(parameter + change) >= value):
            return parameter + change
        change = change / 2
    return parameter


class Learnt(Rotation):
    """A rotation whose angles shrink with its parameter, the first that is saved."""

    def shrink(self) -> None:
        name = self.saved[0]
        whole = getattr(self, name)
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            setattr(self, name, middle * whole)
            self.changed()
            low, high = (middle, high) if self.angle <= self.settings.max_angle else (low, middle)
        setattr(self, name, low * whole)

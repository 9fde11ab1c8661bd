"""Steps whose size is an angle, and the way back from an angle that is too large, for the learnt parameterisations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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


def largest(within: Callable[[float], bool]) -> float:
    """The largest scale in [0, 1] that is within, by bisection; what is within must be so for all smaller scales."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low

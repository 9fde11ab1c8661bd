"""Adam on plain numbers, one variable per key: what is learnt of a task follows it from batch to batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# The published constants. The last is absolute: whoever's slopes have the size of the rows divides by that size first.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

Variable = list[float]
"""The value, Adam's two moments, and the number of its steps: a list, so that a state dict can hold it."""


def start(value: float = 0.0) -> Variable:
    return [value, 0.0, 0.0, 0.0]


def values(variables: Mapping[str, Variable], keys: Sequence[str], otherwise: float = 0.0) -> Tensor:
    """The values of a batch's variables, float64 `[tasks]`; of those that never moved, `otherwise`."""
    found = [variables[key][0] if key in variables else otherwise for key in keys]
    return torch.tensor(found, dtype=torch.float64)


def step(variable: Variable, slope: float, lr: float, *, weight_decay: float = 0.0) -> Variable:
    """One step of Adam (Kingma and Ba 2015, algorithm 1); `weight_decay` is added to the slope, times the value."""
    value, first, second, steps = variable
    slope, steps = slope + weight_decay * value, steps + 1
    first = BETA_1 * first + (1 - BETA_1) * slope
    second = BETA_2 * second + (1 - BETA_2) * slope * slope
    change = first / (1 - BETA_1**steps) / (math.sqrt(second / (1 - BETA_2**steps)) + EPSILON)
    return [value - lr * change, first, second, steps]


def moved(
    variables: Mapping[str, Variable],
    keys: Sequence[str],
    slopes: Sequence[float],
    lr: float,
    *,
    otherwise: float = 0.0,
    weight_decay: float = 0.0,
    bound: float = math.inf,
) -> dict[str, Variable]:
    """The variables of a batch after one step each; two tasks of one key move it together, by the sum of their slopes.

    Those that never moved start at `otherwise`; none leaves [−bound, bound].
    """
    totals: dict[str, float] = {}
    for key, slope in zip(keys, slopes, strict=True):
        totals[key] = totals.get(key, 0.0) + slope
    stepped = {
        key: step(variables.get(key) or start(otherwise), slope, lr, weight_decay=weight_decay)
        for key, slope in totals.items()
    }
    return {key: [min(max(found[0], -bound), bound), *found[1:]] for key, found in stepped.items()}

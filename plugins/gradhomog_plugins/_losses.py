"""What methods that weigh by losses ask of them."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, OptionError

LARGEST_WEIGHT = 1e30
"""Rows in float32, which end at 3.4e38, bear no weight that is much larger."""

LARGEST_BOUND = math.log(LARGEST_WEIGHT)
"""Of a weight's logarithm that is learnt."""

LARGEST_SLOPE = 1e150
"""Adam squares slopes and adds them up: of a larger one it keeps infinity, and never moves again."""


def require(good: Tensor, evidence: Evidence, expected: str, advice: str = "") -> None:
    """Raise an error that names the first task whose loss is not `good` `[tasks]`.

    `expected` begins with the method: "uw: losses must not be negative".
    """
    if bool(good.all()):
        return
    index = good.tolist().index(False)
    task, loss = evidence.keys[index], float(evidence.losses[index].detach())
    domain = f" of domain '{task.domain}'" if task.domain else ""
    raise OptionError(f"{expected}; task {task.slot}{domain} has {loss!r}.{' ' if advice else ''}{advice}")


def require_weights(weights: Tensor, evidence: Evidence, method: str, formula: str) -> None:
    """Raise an error that names the first task whose weight `[tasks]` is larger than rows bear.

    `formula` says what the weight is: "N/L". Only with `scale="paper"` is it in the unit of the losses.
    """
    expected = f"{method}: weights {formula} must be at most {LARGEST_WEIGHT:g}"
    require(weights <= LARGEST_WEIGHT, evidence, expected, "Bring the losses to like units, or use scale='mean'.")


def check_bound(method: str, bound: float) -> None:
    """Raise unless e^bound can be a weight."""
    if not 0 < bound <= LARGEST_BOUND:
        raise OptionError(
            f"{method}: `bound` must be positive and at most {LARGEST_BOUND:.0f}, as e^{LARGEST_BOUND:.0f} is the "
            f"largest weight that float32 bears; got {bound!r}."
        )


def require_slopes(scaled: Tensor, evidence: Evidence, method: str) -> None:
    """Raise an error that names the first task whose loss, times its weight `[tasks]`, is too large for Adam."""
    expected = f"{method}: losses times their weights must be below {LARGEST_SLOPE:g}, Adam squares them"
    require(scaled < LARGEST_SLOPE, evidence, expected, "Divide this loss by a constant.")


def inverse(losses: Tensor) -> Tensor:
    """1/L_i over its mean, `[tasks]`, of positive losses of whatever size."""
    return exponentials(-losses.log(), "mean")


def exponentials(logarithms: Tensor, scale: Literal["mean", "paper"]) -> Tensor:
    """Weights `[tasks]` from their logarithms: e^{l_i} over its mean, or N e^{l_i}."""
    shares = torch.softmax(logarithms, dim=0) if scale == "mean" else logarithms.exp()
    return logarithms.shape[0] * shares

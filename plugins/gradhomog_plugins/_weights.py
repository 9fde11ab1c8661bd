"""Validation of weights that are computed from gradients."""

from __future__ import annotations

from torch import Tensor

from gradhomog import OptionError, Step


def require_at_most(largest: float, weights: Tensor, step: Step, expected: str, advice: str) -> None:
    """Raise an OptionError that names the first task whose weight is larger, or not a number.

    `expected` starts with the name of the method: "lra: λ".
    """
    valid = (weights <= largest).tolist()
    if all(valid):
        return
    index = valid.index(False)
    task = step.keys[index]
    name = f"task {task.slot}" + (f" of domain '{task.domain}'" if task.domain else "")
    found = float(weights[index].detach())
    raise OptionError(f"{expected} must be at most {largest:g}; {name} has {found:g}. {advice}")

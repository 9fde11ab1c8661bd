"""What methods that weigh by losses ask of them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, OptionError


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


def inverse(losses: Tensor) -> Tensor:
    """1/L_i over its mean, `[tasks]`, of positive losses of whatever size."""
    return exponentials(-losses.log(), "mean")


def exponentials(logarithms: Tensor, scale: Literal["mean", "paper"]) -> Tensor:
    """Weights `[tasks]` from their logarithms: e^{l_i} over its mean, or N e^{l_i}."""
    shares = torch.softmax(logarithms, dim=0) if scale == "mean" else logarithms.exp()
    return logarithms.shape[0] * shares

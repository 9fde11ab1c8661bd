"""The length of a step whose weights are in balance with what they give: of Nash-MTL and FairGrad."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from gradhomog import OptionError


def check_max_norm(method: str, max_norm: float | None, scale: str) -> None:
    """Raise unless the step may be clipped to `max_norm`."""
    if max_norm is None:
        return
    if not 0 < max_norm < math.inf:
        raise OptionError(f"{method}: `max_norm` must be positive, or None for no clipping; got {max_norm!r}.")
    if scale != "paper":
        raise OptionError(
            f"{method}: `max_norm` must be None with scale='mean', whose length is that of the gradients; "
            f"got {max_norm!r}. Clip the step in the training loop, or set scale='paper'."
        )


def step_weights(gramian: Tensor, weights: Tensor, scale: Literal["mean", "paper"], max_norm: float | None) -> Tensor:
    """What each row is multiplied by `[tasks]`, the step being the mean: N·w times a common factor."""
    gains = gramian @ weights  # ⟨g_i, d⟩
    square = weights @ gains  # ‖d‖²
    safe = square + (square == 0)  # zero where there is no solution
    if scale == "mean":
        return weights * (gains.sum() / safe)
    if max_norm is None:
        return len(weights) * weights
    return weights * (max_norm / safe.sqrt()).clamp_max(1.0) * len(weights)

"""The Euclidean projection onto the probability simplex."""

from __future__ import annotations

import torch
from torch import Tensor


def project_onto_simplex(values: Tensor) -> Tensor:
    """Return the nearest point with entries ≥ 0 and sum 1 for each vector `[..., tasks]`: argmin_{x ∈ Δ} ‖x − v‖².

    x_i = max(v_i − θ, 0), where θ makes the sum 1: with u the values in descending order, θ = (u_1 + … + u_k − 1) / k
    for the largest k with u_k > θ.

    Differentiable where no entry is at the threshold. An entry of −∞ becomes 0. Exact up to the rounding of
    differences between values, also if a large number is added to all of them. Cost: one sort.

    Source: Held, Wolfe and Crowder 1974, doi 10.1007/BF01580223; Duchi et al. 2008, doi 10.1145/1390156.1390191,
    figure 1.

    >>> project_onto_simplex(torch.tensor([0.5, 1.0, -2.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    # The projection is invariant to a constant added to all values. A large constant would lose the 1 in rounding.
    values = values - values.amax(dim=-1, keepdim=True).detach()
    falling = values.sort(dim=-1, descending=True).values
    excess = falling.cumsum(dim=-1) - 1
    places = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    kept = (falling * places > excess).sum(dim=-1, keepdim=True)
    threshold = excess.gather(-1, kept - 1) / kept
    return (values - threshold).clamp_min(0)

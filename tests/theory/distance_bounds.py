"""Bounds of the distance between two tasks' rows by the total variation of their distributions: Theorem 4.1."""

import math
from typing import Literal

import torch
from torch import Tensor


def distance_bound(
    total_variation: Tensor | float,
    gradient_bound: float,
    smoothness: float,
    inner_lr: float,
    inner_steps: int = 1,
    *,
    first_order: bool = True,
    support_variation: Tensor | float | None = None,
    hessian_smoothness: float | None = None,
    variant: Literal["corrected", "paper"] = "corrected",
) -> Tensor:
    """Bound the distance between two tasks' rows by the total variation of their distributions: Theorem 4.1.

    first order:            d_ij ≤ 2 G min{(1 + ηL)^τ δ, 1}
    through one inner step: d_ij ≤ 2 G min{((1 + ηL)² + ηL) δ, 1 + ηL}
    `variant="paper"`:      d_ij ≤ 4 η G L δ,  as printed in the paper; it does not hold

    Rows are gradients of the expected query loss after τ steps of gradient descent on the expected support loss.

    Args:
        total_variation: δ in [0, 1], `[...]`; sup_A |P_i(A) − P_j(A)|, half the 1-norm for discrete distributions.
        gradient_bound: G ≥ 0, on ‖∇ℓ(ψ, x)‖ for all ψ and x.
        smoothness: L ≥ 0, on ‖∇²ℓ(ψ, x)‖.
        inner_lr: η ≥ 0.
        inner_steps: τ ≥ 0.
        first_order: True for the rows of FOMAML; False for rows through the inner loop, as in MAML.
        support_variation: δ of the support sets, if it differs; `total_variation` is then δ of the query sets.
        hessian_smoothness: ρ ≥ 0, ‖∇²ℓ(ψ, x) − ∇²ℓ(ψ', x)‖ ≤ ρ ‖ψ − ψ'‖. Required for rows through two or more inner
            steps: with G and L alone, no multiple of δ bounds d_ij.
        variant: the corrected bound, or the printed one, which is the same for every τ and for both orders.

    Returns:
        The bound, float64 `[...]`. Differentiable in the total variations. Cost: O(τ) of their size.

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, theorem 4.1. Deviation: the printed bound tends to zero
    with η although the query distributions still differ; derivation: docs/decisions/0007-theorem-4-1.md.

    >>> distance_bound(1.0, gradient_bound=1.0, smoothness=1.0, inner_lr=0.01)
    tensor(2., dtype=torch.float64)
    >>> distance_bound(1.0, gradient_bound=1.0, smoothness=1.0, inner_lr=0.01, variant="paper")  # d = 0.888 exists
    tensor(0.0400, dtype=torch.float64)

    Raises:
        ValueError: `hessian_smoothness` is required and missing.
    """
    steps = inner_steps
    query = torch.as_tensor(total_variation, dtype=torch.float64)
    support = query if support_variation is None else torch.as_tensor(support_variation, dtype=torch.float64)
    rate = inner_lr * smoothness
    if variant == "paper":
        return 4 * rate * gradient_bound * query
    growth = math.expm1(steps * math.log1p(rate))  # (1 + ηL)^τ − 1, exact for small ηL
    gradients = 2 * gradient_bound * (query + growth * support)
    if first_order:
        return gradients.clamp(max=2 * gradient_bound)
    if steps > 1 and hessian_smoothness is None:
        raise ValueError(f"`hessian_smoothness` is required with `first_order=False` and {steps} inner steps")
    apart, hessians = torch.zeros_like(support), torch.zeros_like(support)  # ‖ψ_i − ψ_j‖, Σ ‖H_i − H_j‖ along the loop
    for _ in range(steps):
        hessians = hessians + (2 * smoothness * support + (hessian_smoothness or 0.0) * apart).clamp(max=2 * smoothness)
        apart = (1 + rate) * apart + 2 * inner_lr * gradient_bound * support
    through = inner_lr * (1 + growth) / (1 + rate) * hessians * gradient_bound
    return ((1 + growth) * gradients + through).clamp(max=2 * gradient_bound * (1 + growth))

"""Measures of conflict between the tasks' gradients: cosines, norm ratios, conflict rate and distances.

The measures read a Gramian `[..., tasks, tasks]`, so their own cost is negligible. All but the conflict rate are
differentiable where they are defined. `distance_bound` bounds the distance between the gradients of two distributions.
"""

import math
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.registry.options import validated
from gradhomog.rows.arithmetic import safe_sqrt
from gradhomog.solvers.scaling import require_square


def cosines(gramian: Tensor) -> Tensor:
    """Cosines between rows, `G_ij / √(G_ii · G_jj)`, `[..., tasks, tasks]` in [-1, 1]; 0 for a zero row.

    >>> cosines(torch.tensor([[4.0, 2.0], [2.0, 4.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    norms = safe_sqrt(gramian.diagonal(dim1=-2, dim2=-1))
    safe = torch.where(norms > 0, norms, torch.ones_like(norms))
    # Dividing twice instead of by the product: the product of two small norms may underflow.
    return (gramian / safe.unsqueeze(-1) / safe.unsqueeze(-2)).clamp(-1, 1)


def magnitude_similarity(gramian: Tensor) -> Tensor:
    """`2 n_i n_j / (n_i² + n_j²)` of the row norms n, `[..., tasks, tasks]` in [0, 1]; 1 for equal norms.

    Source: Yu et al. 2020 (PCGrad), definition 2.
    """
    norms = safe_sqrt(gramian.diagonal(dim1=-2, dim2=-1))
    first, second = norms.unsqueeze(-1), norms.unsqueeze(-2)
    larger = torch.maximum(first, second)
    ratio = torch.minimum(first, second) / torch.where(larger > 0, larger, torch.ones_like(larger))
    return torch.where(larger > 0, 2 * ratio / (1 + ratio.square()), torch.ones_like(ratio))


def conflict_rate(gramian: Tensor) -> Tensor:
    """The share of pairs of different tasks whose inner product is negative, `[...]` in [0, 1]; 0 for one task."""
    tasks = gramian.shape[-1]
    pairs = max(tasks * (tasks - 1), 1)
    return (gramian < 0).sum(dim=(-2, -1)).double() / pairs


def distances(gramian: Tensor) -> Tensor:
    """Distances between rows by the law of cosines, `[..., tasks, tasks]` ≥ 0; the diagonal is exactly 0.

    d_ij² = n_i² + n_j² − 2 n_i n_j cos(g_i, g_j),  computed as (G_ii − G_ij) + (G_jj − G_ij)

    Both differences are exact for nearly equal rows (Sterbenz), so the only error is the rounding u of the Gramian:
    d_ij² is accurate to about 4u (G_ii + G_jj). Rows closer than about 3√u of their norm (3e-8 in float64, 7e-4 if the
    Gramian was multiplied in float32) therefore cannot be distinguished from equal rows; subtract the rows if that
    matters.

    Differentiable; the derivative at distance zero is defined as zero. Cost: O(tasks²).

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, section "Theoretical Analysis". Deviation: the paper infers
    that homogenization reduces the distance of *every* pair. Equal norms alone can increase it (0.2 → 6.8 if the norms
    0.1, 0.1 and 10 are set to their mean); `tests/theory/test_law_of_cosines.py` tests the statements that hold.

    >>> distances(torch.tensor([[9.0, 0.0], [0.0, 16.0]]))
    tensor([[0., 5.],
            [5., 0.]])

    Raises:
        OptionError: `gramian` is not square in its last two dimensions.
    """
    require_square(gramian)
    squares = gramian.diagonal(dim1=-2, dim2=-1)
    return safe_sqrt((squares.unsqueeze(-1) - gramian) + (squares.unsqueeze(-2) - gramian))


@validated
def distance_bound(
    total_variation: Tensor | float,
    gradient_bound: Annotated[float, Ge(0)],
    smoothness: Annotated[float, Ge(0)],
    inner_lr: Annotated[float, Ge(0)],
    inner_steps: Annotated[int, Ge(0)] = 1,
    *,
    first_order: bool = True,
    support_variation: Tensor | float | None = None,
    hessian_smoothness: Annotated[float, Ge(0)] | None = None,
    variant: Literal["corrected", "paper"] = "corrected",
) -> Tensor:
    """Bound the distance between two tasks' rows by the total variation of their distributions: Theorem 4.1.

    first order:            d_ij ≤ 2 G min{(1 + ηL)^τ δ, 1}
    through one inner step: d_ij ≤ 2 G min{((1 + ηL)² + ηL) δ, 1 + ηL}
    `variant="paper"`:      d_ij ≤ 4 η G L δ,  as printed in the paper; it does not hold

    Rows are gradients of the expected query loss after τ steps of gradient descent on the expected support loss. The
    bound also holds for the difference of *expected* rows over sampled support and query sets of any size. It does not
    hold for the rows of two independently sampled tasks: those differ even if δ = 0.

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
        OptionError: an argument is out of range, or `hessian_smoothness` is required and missing.
    """
    steps = inner_steps
    query = _variation("total_variation", total_variation)
    support = query if support_variation is None else _variation("support_variation", support_variation)
    rate = inner_lr * smoothness
    if variant == "paper":
        return 4 * rate * gradient_bound * query
    try:
        growth = math.expm1(steps * math.log1p(rate))  # (1 + ηL)^τ − 1, exact for small ηL
    except OverflowError:
        raise OptionError(
            f"(1 + `inner_lr` · `smoothness`)^`inner_steps` must not overflow; got (1 + {rate:g})^{steps}."
        ) from None
    gradients = 2 * gradient_bound * (query + growth * support)
    if first_order:
        return gradients.clamp(max=2 * gradient_bound)
    if steps > 1 and hessian_smoothness is None:
        raise OptionError(
            f"`hessian_smoothness` is required with `first_order=False` and {steps} inner steps; without it, "
            "the total variation gives no bound. Pass it, or use `first_order=True` or "
            "`inner_steps=1`."
        )
    apart, hessians = torch.zeros_like(support), torch.zeros_like(support)  # ‖ψ_i − ψ_j‖, Σ ‖H_i − H_j‖ along the loop
    for _ in range(steps):
        hessians = hessians + (2 * smoothness * support + (hessian_smoothness or 0.0) * apart).clamp(max=2 * smoothness)
        apart = (1 + rate) * apart + 2 * inner_lr * gradient_bound * support
    through = inner_lr * (1 + growth) / (1 + rate) * hessians * gradient_bound
    return ((1 + growth) * gradients + through).clamp(max=2 * gradient_bound * (1 + growth))


def _variation(name: str, value: Tensor | float) -> Tensor:
    variation = torch.as_tensor(value, dtype=torch.float64)
    if not bool(((variation >= 0) & (variation <= 1)).all()):
        raise OptionError(f"`{name}` must be in [0, 1]; got {value!r}.")
    return variation

"""Conjugate gradients on named tensors, with a fixed number of iterations and no device synchronization."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gradhomog import OptionError

Named = Mapping[str, Tensor]
"""Tensors by name, which together form one vector."""


def solve(
    operator: Callable[[dict[str, Tensor]], Named], b: Named, *, iterations: int, max_norm_ratio: float = math.inf
) -> dict[str, Tensor]:
    """The minimiser x of ½ xᵀA x − bᵀx over the Krylov space span{b, A b, …, A^{k−1} b}; A x = b once k is the rank.

    x₀ = 0, r₀ = p₀ = b;  α = rᵀr / pᵀA p,  x ← x + α p,  r ← r − α A p,  β = r₊ᵀr₊ / rᵀr,  p ← r₊ + β p

    Args:
        operator: v ↦ A v, linear and symmetric, on tensors named and shaped as in `b`. It is called exactly
            `iterations` times, with vectors whose largest entry is about 1 for any scale of b.
        b: the right-hand side, floating-point tensors of any shapes, 0-d and empty ones included.
        iterations: k ≥ 1.
        max_norm_ratio: ≥ 1; a step that would make ‖x‖ larger than `max_norm_ratio` · ‖b‖ is treated as one without
            positive curvature.

    The solution stops changing in three cases. The following steps then have length zero; no code path branches:

    - *No positive curvature*: pᵀA p ≤ ε ‖p‖ ‖A p‖, with ε the machine epsilon of b's dtype (of the coarsest, if
      several). Below this bound the sign of the curvature is a rounding error. The result is the previous iterate, or b
      if the first direction has no positive curvature.
    - *Convergence*: ‖r‖ ≤ ε ‖b‖. Further steps would divide rounding errors by rounding errors.
    - *b = 0*: the result is 0.

    Reasons for these results. Without a minimum, ½ xᵀA x − bᵀx has no solution to approximate. Each iterate before is
    the minimum over the directions so far, all of positive curvature, with bᵀx > 0 and a norm that increases with every
    iteration (Steihaug 1983, theorem 2.1). Steihaug then continues to the boundary of a trust region; here the
    direction without a minimum would then determine the length of the row, and so the weight of the task. x = 0 at the
    first direction would silently drop the task from the step. b is the row for λ → ∞ and the first-order row, with a
    length similar to the rows of other tasks; it is also Steihaug's result for the radius ‖b‖. This requires an
    operator that tends to the identity: pass I + H/λ, not λI + H. If I + H/λ is not positive definite, the adapted
    point is not a strict minimum of the proximal problem and no implicit gradient exists, so no result is correct.

    A small positive curvature makes x long, up to 1/ε, just before a system is found to be indefinite (measured:
    474 ‖b‖). If H is positive semi-definite, ‖(I + H/λ)⁻¹ b‖ ≤ ‖b‖, and the same holds for every iterate:
    `max_norm_ratio` then has no effect. `max_norm_ratio=2` has no effect as long as all eigenvalues of H are ≥ −λ/2.

    Damping is added by the caller: `lambda v: v + H v / λ + δ v` costs one addition, the unit of δ depends on the
    caller's problem, and the curvature then refers to the system that is solved.

    NaN or infinity in b or in the results of the operator makes x NaN, which a check of rows for finiteness detects.
    The result is not differentiable: b and the operator's results are detached, so graphs do not outlive an iteration.
    Scalars are float64, vectors keep their dtype. There is no absolute epsilon, and equivariance in b holds from
    1e-18 to 1e18 in float32. Supports `torch.func.vmap` (systems of a batch stop independently; each costs k
    applications) and `torch.compile(fullgraph=True)`.

    Cost: k applications of the operator, memory for 5 vectors, and 4 inner products (7 with `max_norm_ratio`) and 3
    vector updates per iteration.

    Source: Hestenes and Stiefel 1952, section 3; Rajeswaran et al. 2019, arXiv 1909.04630, algorithm 2.

    Deviations from the authors' code of iMAML (`cg_solve`): it stops at ‖r‖² < 1e-10, an absolute tolerance that allows
    a gradient of norm 1e-5 only one iteration; it synchronizes with the device in every iteration; it divides by pᵀA p
    of either sign, so an indefinite system gives a row of any length, which can increase the loss.

    Raises:
        OptionError: `b` is empty.

    >>> b = {"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor(3.0)}
    >>> solution = solve(lambda v: {name: 4 * tensor for name, tensor in v.items()}, b, iterations=5)
    >>> solution["weight"].tolist(), solution["bias"].item()
    ([0.25, 0.5], 0.75)
    """
    b = {name: tensor.detach() for name, tensor in b.items()}
    if not b:
        raise OptionError("`b` of conjugate gradients must contain at least one tensor; got none.")
    epsilon = max(torch.finfo(tensor.dtype).eps for tensor in b.values())
    scale = _largest(b)
    # Division, because 1/scale overflows if b contains only denormal numbers.
    start = {name: tensor / scale.to(tensor.dtype) for name, tensor in b.items()}

    x = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    r = p = start
    first = squared = _inner(r, r)
    alive = first > 0
    untouched = torch.zeros_like(alive)  # the first direction has no positive curvature: the result is b
    for iteration in range(iterations):
        product = operator(p)
        q = {name: product[name].detach() for name in p}
        curvature, limit = _inner(p, q), epsilon * torch.sqrt(_inner(p, p) * _inner(q, q))
        # A curvature of minus infinity is a broken operator, not a direction of negative curvature.
        curvature = torch.where(torch.isfinite(limit), curvature, torch.nan)
        flat = curvature <= limit  # false for NaN, so that NaN reaches x
        if max_norm_ratio < math.inf:
            step = squared / torch.where(flat, 1.0, curvature)
            reach = _inner(x, x) + 2 * step * _inner(x, p) + step**2 * _inner(p, p)
            flat = flat | (reach > max_norm_ratio**2 * first)
        if iteration == 0:
            untouched = alive & flat
        alive = alive & ~flat

        alpha = torch.where(alive, squared / torch.where(alive, curvature, 1.0), 0.0)
        x, r = _add(x, alpha, p), _add(r, -alpha, q)
        before, squared = squared, torch.where(alive, _inner(r, r), squared)
        # NaN must reach x: a comparison with `<=` is false for NaN, so the system stays alive.
        alive = alive & ~(squared <= epsilon**2 * first)
        beta = torch.where(alive, squared / torch.where(alive, before, 1.0), 0.0)
        p = _add(r, beta, p)

    finite = torch.isfinite(first) & torch.isfinite(squared)
    return {
        name: torch.where(finite, torch.where(untouched, b[name], tensor * scale.to(tensor.dtype)), torch.nan)
        for name, tensor in x.items()
    }


def _inner(a: Named, b: Named) -> Tensor:
    """aᵀb, 0-d, computed in float64, because squares overflow float32 at 1e19."""
    return torch.stack([(a[name].double() * b[name].double()).sum() for name in a]).sum()


def _add(a: Named, factor: Tensor, b: Named) -> dict[str, Tensor]:
    """a + factor · b in the dtype of a. The factor is converted first; otherwise 0-d tensors would become float64."""
    return {name: tensor + factor.to(tensor.dtype) * b[name] for name, tensor in a.items()}


def _largest(b: Named) -> Tensor:
    """Largest absolute entry, 0-d, float64; 1 if all are zero, so that it can be a divisor."""
    largest = [tensor.abs().max().double() for tensor in b.values() if tensor.numel()]
    peak = torch.stack(largest).max() if largest else next(iter(b.values())).new_ones((), dtype=torch.float64)
    return torch.where(peak == 0, 1.0, peak)

"""Conjugate gradients on named tensors, in a fixed number of iterations that never wait for the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog import OptionError

Named = Mapping[str, Tensor]
"""Tensors by name, together one vector."""


@dataclass(frozen=True)
class Solution:
    """What `solve` returns; everything is a tensor, so that looking at it is the caller's decision to wait."""

    tensors: dict[str, Tensor]
    """x, with the names, shapes and dtypes of b."""
    relative_residual: Tensor
    """‖b − A x‖ / ‖b‖ as the recurrence carries it, 0-d, float64; 0 where b is zero. It can be below the true one by
    rounding once it nears the dtype's precision."""
    iterations: Tensor
    """How many iterations changed x, 0-d, int64."""
    indefinite: Tensor
    """Whether a direction without positive curvature, or a step beyond `longest`, was met, 0-d, bool."""


def solve(
    operator: Callable[[dict[str, Tensor]], Named], b: Named, *, iterations: int, longest: float = math.inf
) -> Solution:
    """The minimiser x of ½ xᵀA x − bᵀx over the Krylov space span{b, A b, …, A^{k−1} b}; A x = b once k is the rank.

    x₀ = 0, r₀ = p₀ = b;  α = rᵀr / pᵀA p,  x ← x + α p,  r ← r − α A p,  β = r₊ᵀr₊ / rᵀr,  p ← r₊ + β p

    Args:
        operator: v ↦ A v, linear and symmetric, on tensors named and shaped as in `b`. It is called exactly
            `iterations` times, with vectors whose largest entry is about 1 whatever the scale of b.
        b: the right-hand side, floating-point tensors of any shapes, 0-d and empty ones included.
        iterations: k ≥ 1.
        longest: ≥ 1; a step that would make ‖x‖ larger than `longest` · ‖b‖ counts as one without positive curvature.

    Three things end the iteration early, each by a step of length zero, never by a branch:

    - *No positive curvature*: pᵀA p ≤ ε ‖p‖ ‖A p‖, ε the machine epsilon of b's dtype (of the coarsest, if several):
      below that the sign of the curvature is rounding. The answer is the iterate reached before, and b itself if the
      very first direction has none.
    - *Convergence*: ‖r‖ ≤ ε ‖b‖. More would be divisions of rounding by rounding.
    - *b = 0*, whose answer is 0.

    Why these answers. Without a minimum, ½ xᵀA x − bᵀx has no solution to approach; each iterate before that is the
    minimum over the directions seen so far, all of positive curvature, with bᵀx > 0 and a norm that grows from iterate
    to iterate (Steihaug 1983, theorem 2.1). Steihaug then walks on to the boundary of a trust region; here that would
    give the row its length, and the task its weight, along the very direction in which the model has no minimum.
    x = 0 at the first direction would drop the task from the step without a word. b is the row for λ → ∞ and that of
    first order, with the length that other tasks' rows have; it is also Steihaug's answer for the radius ‖b‖. It
    presumes an operator in which the identity is neutral: give I + H/λ, not λI + H. Where I + H/λ is not positive
    definite the adapted point is no strict minimum of the proximal problem and no implicit gradient exists, so no
    answer is right: `indefinite` says so.

    A curvature that is positive but tiny makes x long, up to 1/ε at worst, just before a system turns out indefinite
    (measured: 474 ‖b‖). Where H is positive semi-definite, ‖(I + H/λ)⁻¹ b‖ ≤ ‖b‖ and so is every iterate: `longest`
    is then never reached, and with 2 it is not reached either while no eigenvalue of H lies below −λ/2.

    Damping is the caller's: `lambda v: v + H v / λ + δ v` costs one addition, only the caller knows δ's unit, and the
    residual and the curvature then refer to the system that is solved.

    NaN or infinity in b or in what the operator returns makes x NaN: a check of rows for finiteness finds it.
    Nothing is differentiable: b and the operator's values are detached, so no graph outlives an iteration.
    Scalars are float64, vectors stay in their dtype; there is no absolute epsilon, and equivariance in b holds from
    1e-18 to 1e18 in float32. Works under `torch.func.vmap` (each system of the batch ends on its own; each costs k
    applications) and `torch.compile(fullgraph=True)`.

    Cost: k applications of the operator, 5 vectors of memory, 4 inner products (7 with `longest`) and 3 updates of
    vectors per iteration.

    Source: Hestenes and Stiefel 1952, section 3; Rajeswaran et al. 2019, arXiv 1909.04630, algorithm 2.

    Deviations from the authors' code of iMAML (`cg_solve`): it stops when ‖r‖² falls below 1e-10, an absolute number
    that leaves a gradient of norm 1e-5 with one iteration; it waits for the device in every iteration; it divides by
    pᵀA p whatever its sign, so an indefinite system gives a row of any length, uphill as well as downhill.

    Raises:
        OptionError: `iterations` is no integer ≥ 1, `longest` is below 1, or `b` is empty.

    >>> b = {"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor(3.0)}
    >>> solution = solve(lambda v: {name: 4 * tensor for name, tensor in v.items()}, b, iterations=5)
    >>> solution.tensors["weight"].tolist(), solution.tensors["bias"].item(), int(solution.iterations)
    ([0.25, 0.5], 0.75, 1)
    """
    if not isinstance(iterations, int) or isinstance(iterations, bool) or iterations < 1:
        raise OptionError(f"`iterations` of conjugate gradients must be an integer of at least 1; got {iterations!r}.")
    if not longest >= 1:
        raise OptionError(f"`longest` of conjugate gradients must be at least 1, the length of b; got {longest!r}.")
    b = {name: tensor.detach() for name, tensor in b.items()}
    if not b:
        raise OptionError("`b` of conjugate gradients must hold at least one tensor; got none.")
    epsilon = max(torch.finfo(tensor.dtype).eps for tensor in b.values())
    scale = _largest(b)
    # Divided, not multiplied by 1/scale: that overflows where b holds denormal numbers.
    start = {name: tensor / scale.to(tensor.dtype) for name, tensor in b.items()}

    x = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    r = p = start
    first = squared = _inner(r, r)
    alive = first > 0
    indefinite = torch.zeros_like(alive)
    used = torch.zeros_like(alive, dtype=torch.int64)
    rejected = first  # ‖b − A b‖², the residual of b should b be the answer
    for iteration in range(iterations):
        product = operator(p)
        q = {name: product[name].detach() for name in p}
        curvature, limit = _inner(p, q), epsilon * torch.sqrt(_inner(p, p) * _inner(q, q))
        # Minus infinity is a broken operator, not a direction of negative curvature.
        curvature = torch.where(torch.isfinite(limit), curvature, torch.nan)
        if iteration == 0:
            rejected = first - 2 * curvature + _inner(q, q)
        flat = curvature <= limit  # false for NaN, which therefore goes on into x
        if longest < math.inf:
            step = squared / torch.where(flat, 1.0, curvature)
            reach = _inner(x, x) + 2 * step * _inner(x, p) + step**2 * _inner(p, p)
            flat = flat | (reach > longest**2 * first)
        indefinite = indefinite | (alive & flat)
        alive = alive & ~flat
        used = used + alive.to(torch.int64)

        alpha = torch.where(alive, squared / torch.where(alive, curvature, 1.0), 0.0)
        x, r = _add(x, alpha, p), _add(r, -alpha, q)
        before, squared = squared, torch.where(alive, _inner(r, r), squared)
        # A NaN stays alive: it must reach x, and with `<=` it does.
        alive = alive & ~(squared <= epsilon**2 * first)
        beta = torch.where(alive, squared / torch.where(alive, before, 1.0), 0.0)
        p = _add(r, beta, p)

    untouched = indefinite & (used == 0)
    squared = torch.where(untouched, rejected, squared)
    finite = torch.isfinite(first) & torch.isfinite(squared)
    residual = torch.where(first == 0, 0.0, torch.sqrt(squared / torch.where(first == 0, 1.0, first)))
    answer = {
        name: torch.where(finite, torch.where(untouched, b[name], tensor * scale.to(tensor.dtype)), torch.nan)
        for name, tensor in x.items()
    }
    return Solution(answer, residual, used, indefinite)


def _inner(a: Named, b: Named) -> Tensor:
    """aᵀb, 0-d, with products and sums in float64: squares of float32 leave its range at 1e19."""
    return torch.stack([(a[name].double() * b[name].double()).sum() for name in a]).sum()


def _add(a: Named, factor: Tensor, b: Named) -> dict[str, Tensor]:
    """a + factor · b in the dtype of a; the factor is converted first, or it would make a 0-d parameter float64."""
    return {name: tensor + factor.to(tensor.dtype) * b[name] for name, tensor in a.items()}


def _largest(b: Named) -> Tensor:
    """The largest absolute entry, 0-d, float64; 1 where all are zero, so that it can be divided by."""
    largest = [tensor.abs().max().double() for tensor in b.values() if tensor.numel()]
    peak = torch.stack(largest).max() if largest else torch.ones((), dtype=torch.float64, device=_device(b))
    return torch.where(peak == 0, 1.0, peak)


def _device(b: Named) -> torch.device:
    return next(iter(b.values())).device

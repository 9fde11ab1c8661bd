"""iMAML: learn an initialization by the implicit gradient of a proximal inner problem."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Unpack

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from gradhomog import LearnerSpec, TaskRow, hookimpl
from gradhomog_adapters._gradients import Operator, detach_all, zeros_for_missing
from gradhomog_adapters._inner_optimizer import Inner
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._option_types import Count, CountOrZero, NonNegative, Positive
from gradhomog_adapters.few_shot import LearnerOptions, QueryRow, Support
from gradhomog_adapters.maml import MAML, Tensors

START = "start."

Named = Mapping[str, Tensor]
"""Tensors by name, which together form one vector."""


class IMAML(MAML):
    """Learns an initialization θ for which the regularized solution of each task has a low query loss.

    θ_i* = argmin L_S(θ') + λ/2 ‖θ' − θ‖²
    row_i = ((1 + δ)I + H/λ)⁻¹ ∇L_Q(θ_i*),  H = ∇²L_S(θ_i*),  δ = 0 by default;
    w.r.t. a parameter ω that is not adapted:  ∂_ω L_Q(θ_i*) − 1/λ ∂_ω∂_θ' L_S(θ_i*) · row_i

    The last line is ∂_ω L_Q + (dθ*/dω)ᵀ ∇L_Q: differentiating the condition ∇L_S(θ*, ω) + λ(θ* − θ) = 0 w.r.t. ω gives
    dθ*/dω = −(H + λI)⁻¹ ∂_θ'∂_ω L_S.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner: inner optimizer, see `MAML`: a name, a TorchOpt transformation or a function that returns one. The row
            depends only on the result of the inner loop, not on its steps.
        inner_lr: > 0, used if `inner` is a name. Gradient descent needs a rate below 2/(λ + largest eigenvalue of H).
        inner_steps: K ≥ 0 steps on the proximal objective in training. The row is the derivative of the query loss only
            if they reach the minimum of this objective.
        test_steps: K at meta-test, on the same objective; default: `inner_steps`.
        proximal: λ > 0, the weight of the distance to θ in the inner objective.
        cg_steps: iterations of conjugate gradients, ≥ 1.
        damping: δ ≥ 0: the system is (1 + δ)I + H/λ.
        max_norm_ratio: ≥ 1: conjugate gradients stop before the row is longer than this times ‖∇L_Q‖. The value 2 has
            no effect if all eigenvalues of H are ≥ −λ/2.
        adapt: glob pattern, or several, over the names of the parameters of the inner problem.
        engine, compile, autocast, norm, recompute: see `Execution`. If compiled, K and `cg_steps` are
            unrolled, which takes minutes; under `autocast` products with H have its accuracy; there is no graph to
            recompute.

    If I + H/λ is not positive definite, θ_i* is not a strict minimum, and no row is correct. Conjugate gradients then
    return the last iterate before a direction without positive curvature, or ∇L_Q (first order) if the first direction
    has none. With batch normalization this is the usual case at the published λ
    (`docs/decisions/0012-implicit-gradients.md`).

    Graphs do not outlive an inner step: memory does not grow with K. Cost per task: K steps, one graph of ∇L_S, and
    `cg_steps` products with H (about two backward passes each); if some parameters are not adapted, one more graph and
    one more product.

    Source: Rajeswaran et al. 2019, arXiv 1909.04630, the proximal problem of section 2.2, the implicit Jacobian of
    Lemma 1, algorithms 1 and 2. The derivative w.r.t. ω is ours.

    Deviations from the authors' code: (1) every inner step minimizes the proximal objective; theirs takes K plain
    steps and then a single step along the proximal term, which does not reach θ*. (2) The system is that of the paper;
    their call passes the damping as a regularization argument, and with their defaults the system is
    2I + H/(λ + 10). (3) No damping by default (theirs: 1), because the paper's formula has none. (4) The number of
    iterations is fixed, and they stop at indefinite directions; theirs stop at an absolute residual and divide by any
    curvature.

    TorchOpt's `custom_root` with `solve_cg` gives the same rows on well-conditioned problems, up to rounding
    (`docs/examples/imaml_custom_root.py`). It is not used here: its result for an indefinite system is arbitrary, every
    iteration synchronizes with the device, it calls deprecated functions, and by default it takes no iteration for a
    0-d parameter.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = IMAML(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1), inner_lr=0.05, inner_steps=20, proximal=2.0)
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> report = learner.step(TaskBatch(x, torch.sin(x), x, torch.sin(x)), torch.optim.Adam(learner.parameters()))
    >>> tuple(report.cosines.shape)
    (3, 3)
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        inner: Inner = "sgd",
        inner_lr: Positive = 0.1,
        inner_steps: CountOrZero = 16,
        test_steps: CountOrZero | None = None,
        proximal: Positive = 2.0,
        cg_steps: Count = 5,
        damping: NonNegative = 0.0,
        max_norm_ratio: Annotated[float, Ge(1), Le(math.inf)] = 2.0,
        adapt: str | Sequence[str] = "*",
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(
            encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps,
            test_steps=test_steps, adapt=adapt, **options,
        )  # fmt: skip
        self.proximal, self.cg_steps, self.damping, self.max_norm_ratio = proximal, cg_steps, damping, max_norm_ratio
        self.order = "none"  # inner steps are not differentiated: the row depends only on their result

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        """Return θ*, detached."""
        theta = detach_all(parameters)
        found = super().adapt({**theta, **{START + name: tensor for name, tensor in theta.items()}}, support)
        return {name: found[name] for name in parameters}

    def support_loss(self, parameters: Parameters, support: Support, k: int, features: Tensor | None) -> Tensor:
        """L_S(θ') + λ/2 ‖θ' − θ‖²"""
        away = [(parameters[n] - parameters[START + n]).square().sum() for n in self.adapted if START + n in parameters]
        return support.loss(parameters, features) + self.proximal / 2 * torch.stack(away).sum()

    def row(self, parameters: Parameters, support: Support, query_row: QueryRow) -> TaskRow:
        solution = self.adapt(parameters, support)
        adapted = {name: solution[name] for name in self.adapted if name in solution}
        fixed = {name: tensor for name, tensor in solution.items() if name not in adapted}
        if not adapted:
            return query_row(lambda at, _: [at], solution)
        # Computed before the encoder runs on the queries: hooks that homogenizers have attached to it still have the
        # state of the support set.
        features = self.shared_features(adapted, fixed, support)
        hessian = support.hessian(lambda at: support.loss({**fixed, **at}, features), adapted)
        whole_hessian = support.hessian(support.loss, solution) if fixed else None
        found = query_row(lambda at, _: [at], solution)
        gradients = zeros_for_missing([found.gradients.get(name) for name in solution], list(solution.values()))
        rows = dict(zip(solution, gradients, strict=True))
        rows |= self._solve(hessian, {name: rows[name] for name in adapted})
        if whole_hessian:
            product = whole_hessian({**rows, **{name: torch.zeros_like(tensor) for name, tensor in fixed.items()}})
            rows |= {name: rows[name] - product[name] / self.proximal for name in fixed}
        unused = {name for name in solution if found.gradients.get(name) is None and not rows[name].any()}
        found.gradients = {name: None if name in unused else row for name, row in rows.items()}
        return found

    def _solve(self, hessian: Operator, g: Tensors) -> Tensors:
        """Solve ((1 + δ) I + H/λ) x = g for x."""

        def operator(v: Mapping[str, Tensor]) -> Tensors:
            curved = hessian(v)
            return {name: (1 + self.damping) * v[name] + curved[name] / self.proximal for name in v}

        return conjugate_gradients(operator, g, iterations=self.cg_steps, max_norm_ratio=self.max_norm_ratio)


def conjugate_gradients(
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
    >>> solution = conjugate_gradients(lambda v: {name: 4 * tensor for name, tensor in v.items()}, b, iterations=5)
    >>> solution["weight"].tolist(), solution["bias"].item()
    ([0.25, 0.5], 0.75)
    """
    b = {name: tensor.detach() for name, tensor in b.items()}
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


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=IMAML,
        summary="learns an initialization by the implicit gradient of a proximal inner problem",
        reference="Rajeswaran et al. 2019, arXiv 1909.04630",
    )

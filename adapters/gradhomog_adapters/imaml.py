"""iMAML: learn an initialization by the implicit gradient of a proximal inner problem."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Unpack

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from gradhomog import LearnerSpec, TaskRow, hookimpl
from gradhomog_adapters import _conjugate_gradients as conjugate_gradients
from gradhomog_adapters._gradients import Operator, detach_all, zeros_for_missing
from gradhomog_adapters._inner_optimizer import Inner
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._option_types import Count, CountOrZero, NonNegative, Positive
from gradhomog_adapters.few_shot import LearnerOptions, QueryRow, Support
from gradhomog_adapters.maml import MAML, Tensors

START = "start."


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
        # Computed before the encoder runs on the queries: hooks that homogenizers have attached to it still have the
        # state of the support set.
        features = self.shared_features(adapted, fixed, support)
        hessian = support.hessian(lambda at: support.loss({**fixed, **at}, features), adapted) if adapted else None
        whole_hessian = support.hessian(support.loss, solution) if adapted and fixed else None
        found = query_row(lambda at, _: [at], solution)
        gradients = zeros_for_missing([found.gradients.get(name) for name in solution], list(solution.values()))
        rows = dict(zip(solution, gradients, strict=True))
        if hessian:
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

        return conjugate_gradients.solve(operator, g, iterations=self.cg_steps, max_norm_ratio=self.max_norm_ratio)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=IMAML,
        summary="learns an initialization by the implicit gradient of a proximal inner problem",
        reference="Rajeswaran et al. 2019, arXiv 1909.04630",
    )

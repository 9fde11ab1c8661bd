"""iMAML: the derivative of a proximal inner problem's solution, whatever path led there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, TaskRow, hookimpl
from gradhomog_adapters import _conjugate_gradients as conjugate_gradients
from gradhomog_adapters._inner_optimizer import Inner
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters._rows.gradients import Operator, constants, zeros_for_missing
from gradhomog_adapters._rows.sets import QueryRow
from gradhomog_adapters.execution import Execution, ExecutionOptions
from gradhomog_adapters.few_shot import Support
from gradhomog_adapters.maml import MAML, Tensors

START = "start."


class IMAML(MAML):
    """Learns an initialisation θ near which each task's regularised solution does well on the task's query set.

    θ_i* = argmin L_S(θ') + λ/2 ‖θ' − θ‖²
    row_i = (I + H/λ)⁻¹ ∇L_Q(θ_i*),  H = ∇²L_S(θ_i*);
    by a parameter ω that is not adapted:  ∂_ω L_Q(θ_i*) − 1/λ ∂_ω∂_θ' L_S(θ_i*) · row_i

    The second line is ∂_ω L_Q + (dθ*/dω)ᵀ ∇L_Q: differentiating the condition ∇L_S(θ*, ω) + λ(θ* − θ) = 0 by ω gives
    dθ*/dω = −(H + λI)⁻¹ ∂_θ'∂_ω L_S.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner: as of `MAML`: an optimizer by name, a TorchOpt transformation or a function that makes one. The row
            depends on where it arrives and not on how.
        inner_lr: > 0, used when `inner` is a name. Gradient descent needs it below 2/(λ + largest eigenvalue of H).
        inner_steps: K ≥ 0 steps on the proximal objective while training. The row is the derivative of the loss as
            far as they arrive at its minimum.
        test_steps: K at meta-test, on the same objective; as `inner_steps` by default.
        proximal: λ > 0: how strongly the adapted parameters are held to θ.
        cg_steps: iterations of conjugate gradients, ≥ 1.
        damping: δ ≥ 0: solves with (1 + δ)I + H/λ.
        longest: ≥ 1: a step of conjugate gradients to a row longer than this times ‖∇L_Q‖ is not taken. It is never
            reached while no eigenvalue of H lies below −λ/2 (for 2).
        adapt: glob pattern, or several, over the parameter names that the inner problem is about.
        execution, engine, compile, autocast, norm, recompute: see `Execution`. Compiled, K and `cg_steps` are unrolled,
            which takes minutes; under `autocast` products with H have its accuracy; there is no graph to recompute.

    Where I + H/λ is not positive definite, θ_i* is no strict minimum, and no row is right. Conjugate gradients then
    give the last iterate before a direction without positive curvature, and ∇L_Q (first order) if the first one is
    such; with batch normalization this is the rule at the published λ (`docs/decisions/0012-implicit-gradients.md`).

    No graph of an inner step outlives it: memory does not grow with K. Cost per task: K steps, one graph of ∇L_S,
    `cg_steps` products with H (about two backward passes each); where a parameter is not adapted, one more of both.

    Source: Rajeswaran et al. 2019, arXiv 1909.04630, the proximal problem of section 2.2, the implicit Jacobian of
    Lemma 1, algorithms 1 and 2. The derivative by ω is ours.

    Deviations from the authors' code: (1) every inner step descends on the proximal objective; theirs takes K plain
    steps and then a single one along the proximal term, so that it does not arrive at θ*. (2) The system is the
    paper's; their call passes the damping in the place of a regularisation, and by their defaults solves with
    2I + H/(λ + 10). (3) No damping by default (theirs: 1), as it is not in the paper's formula. (4) Iterations are
    fixed in number and stop at indefinite directions; theirs stop at an absolute residual and divide by any curvature.

    TorchOpt's `custom_root` with `solve_cg` gives the same rows on well-conditioned problems, up to rounding
    (`docs/examples/imaml_custom_root.py`). It is not used here: an indefinite system gets any answer, every iteration
    waits for the device, it calls deprecated functions, and by default it takes no iteration for a parameter without
    dimensions.

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
        inner_lr: float = 0.1,
        inner_steps: int = 16,
        test_steps: int | None = None,
        proximal: float = 2.0,
        cg_steps: int = 5,
        damping: float = 0.0,
        longest: float = 2.0,
        adapt: str | Sequence[str] = "*",
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptions],
    ) -> None:
        super().__init__(
            encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps,
            test_steps=test_steps, adapt=adapt, loss=loss, execution=Execution.of(execution, keywords),
        )  # fmt: skip
        _check(proximal, cg_steps, damping, longest)
        self.proximal, self.cg_steps, self.damping, self.longest = proximal, cg_steps, damping, longest
        self.order = "none"  # inner steps are not differentiated: the row depends on where they arrive

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        """θ*, a constant."""
        theta = constants(parameters)
        found = super().adapt({**theta, **{START + name: tensor for name, tensor in theta.items()}}, support)
        return {name: found[name] for name in parameters}

    def support_loss(self, parameters: Parameters, support: Support, k: int, features: Tensor | None) -> Tensor:
        """L_S(θ') + λ/2 ‖θ' − θ‖²"""
        away = [(parameters[n] - parameters[START + n]).square().sum() for n in self.adapted if START + n in parameters]
        return support.loss(parameters, features) + self.proximal / 2 * torch.stack(away).sum()

    def row(self, parameters: Parameters, support: Support, query_row: QueryRow) -> TaskRow:
        solution = self.adapt(parameters, support)
        theta = {name: solution[name] for name in self.adapted if name in solution}
        omega = {name: tensor for name, tensor in solution.items() if name not in theta}
        # Products with ∂∇L_S before the encoder runs on the queries: what homogenizers have attached to it is then
        # still that of the support set.
        features = self.shared_features(theta, omega, support)
        hessian = support.hessian(lambda at: support.loss({**omega, **at}, features), theta) if theta else None
        mixed = support.hessian(support.loss, solution) if theta and omega else None
        found = query_row(lambda at, _: [at], solution)
        by = [found.gradients.get(name) for name in solution]
        g = dict(zip(solution, zeros_for_missing(by, list(solution.values())), strict=True))
        x = self._solved(hessian, {name: g[name] for name in theta}) if hessian else {}
        rows = {**g, **x}
        if mixed:
            crossed = mixed({**rows, **{name: torch.zeros_like(tensor) for name, tensor in omega.items()}})
            rows |= {name: g[name] - crossed[name] / self.proximal for name in omega}
        found.gradients = rows
        return found

    def _solved(self, hessian: Operator, g: Tensors) -> Tensors:
        """x of (I + H/λ) x = g, with damping δ of ((1 + δ) I + H/λ) x = g."""

        def operator(v: Mapping[str, Tensor]) -> Tensors:
            curved = hessian(v)
            return {name: (1 + self.damping) * v[name] + curved[name] / self.proximal for name in v}

        return conjugate_gradients.solve(operator, g, iterations=self.cg_steps, longest=self.longest).tensors


def _check(proximal: float, cg_steps: int, damping: float, longest: float) -> None:
    """Raises OptionError."""
    if not 0 < proximal < float("inf"):
        raise OptionError(f"`proximal` must be positive and finite; got {proximal!r}.")
    if not isinstance(cg_steps, int) or isinstance(cg_steps, bool) or cg_steps < 1:
        raise OptionError(f"`cg_steps` must be an integer of at least 1; got {cg_steps!r}. For first order: `fomaml`.")
    if not 0 <= damping < float("inf"):
        raise OptionError(f"`damping` must be finite and not negative; got {damping!r}.")
    if not longest >= 1:
        raise OptionError(f"`longest` must be at least 1, the length of the query gradient; got {longest!r}.")


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=IMAML,
        summary="learns an initialisation by the implicit gradient of a proximal inner problem",
        reference="Rajeswaran et al. 2019, arXiv 1909.04630",
    )

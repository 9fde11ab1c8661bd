"""Gauss-Newton: a step in the space of residuals, damped as by Levenberg and Marquardt."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, safe_sqrt
from gradhomog_plugins import EQUIVARIANT, _losses

RAISED, LOWERED = 4.0, 1 / 3
"""Factors of the damping after a rejected and after an accepted step."""

SMALLEST, LARGEST = 1e-14, 1e8
"""Bounds of the adapted damping: the rounding of float64, and a damping with which a step no longer matters, as in a
minimum, where no step decreases the losses."""


class GaussNewton(Homogenizer):
    """The step of least squares: losses are halves of squared residuals, whose linearizations it brings to zero.

        L_i = r_i²/2,  g_i = r_i ∇r_i,  K_ij = ⟨∇r_i, ∇r_j⟩ = ⟨g_i, g_j⟩ / (r_i r_j)
        d = Σ_i c_i ∇r_i = argmin ‖J d − r‖² + λ ‖d‖²,  (K + λ I) c = r,  λ = damping · tr K
        the paper's scale is d; otherwise d · (1 + damping) tr K / N

    Args:
        damping: λ relative to the trace of K, > 0. As it grows, the direction approaches Σ_i g_i.
        adaptive: adapt `damping` as Levenberg and Marquardt: call the pipeline again with the same losses after a step
            that did not decrease them and was undone. The damping is then multiplied by 4; with other losses it is
            divided by 3. It stays between 1e-14 and 1e8. In a loop that never undoes a step it only decreases, until
            training diverges: use a fixed damping there.

    Use it when all losses are squared residuals, as in physics-informed networks and regression, with one row for each
    residual (`gradhomog.residual_rows`): no weight between equation and conditions is needed, because as `damping`
    decreases, the step depends less on the units of the residuals. Take the step with SGD, a rate of 1 and
    `scale="paper"`: from any parameters, one such step solves a linear least-squares problem. Other optimizers rescale
    the step. Undamped steps diverge on nonlinear problems, and no fixed damping fits a whole training: use `adaptive`,
    which evaluates the losses once more on the same points. It is for large batches in float64, deterministic or
    redrawn, of at most thousands of residuals; not for noisy targets, whose noise each step fits.

    The method is also called natural gradient (ENGD-W), minSR in quantum Monte Carlo, and kernel Gauss-Newton. A task
    with one loss for many residuals counts as the residual √(2 L). Weights may be negative. The sign of r_i has no
    effect. A residual of exactly 0 has a zero row, from which ∇r_i cannot be recovered: it takes no part in the step,
    with weight 0; the same where r_i² underflows in the dtype of the losses, and nearly so just above (|r_i| < 1e-22
    in float32, 1e-3 in float16). Losses must not be negative. With more residuals than parameters, rounding limits the
    direction to a relative precision of about 1e-16 / damping, in float32 1e-7 / damping.

    Differentiable in rows and losses, where no loss is 0.

    State: with `adaptive`, the damping and the sum of the last losses.

    Cost: a Gramian in float64 and one solution, O(N² params + N³): 0.08 s for 512 rows of 5,301 parameters.

    Source: Nocedal and Wright 2006, "Numerical Optimization", chapter 10, and Marquardt 1963, doi 10.1137/0111030; in
    the space of residuals Guzmán-Cordero et al. 2025 (ENGD-W), arXiv 2505.12149, and Chen and Heyl 2024 (minSR),
    doi 10.1038/s41567-024-02566-1.

    Deviations: (1) λ is relative to the trace; ENGD-W has an absolute λ, tuned for each equation. Relative to the
    largest eigenvalue, errors are about equal. (2) ENGD-W searches the length of the step on a grid, or fixes it; here
    the damping is adapted. (3) No momentum (SPRING, arXiv 2401.10190): with a factor of 0.5 the error decreased on the
    Klein-Gordon equation (1.4e-3, 1.4e-3 to 2.6e-4, 2.8e-4; two seeds) and increased on the Helmholtz equation (1.2e-3,
    4.0e-3 to 8.0e-3, 7.2e-3).

    >>> import torch, gradhomog
    >>> jacobian, r = torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([2.0, 3.0])
    >>> pipe = gradhomog.pipeline('gauss_newton(damping=1e-9, scale="paper")')
    >>> pipe.combine(r[:, None] * jacobian, losses=r.square() / 2)  # solves J d = r
    tensor([1., 2.])
    """

    state_names = {"current": float, "last": float}

    def __init__(self, damping: Annotated[float, Gt(0)] = 1e-3, adaptive: bool = False) -> None:
        self.damping, self.adaptive = damping, adaptive
        self.current, self.last = damping, -1.0  # no sum of losses

    def mix(self, step: Step) -> StageResult:
        residuals = safe_sqrt(2 * _losses.nonnegative(step, "because r = √(2 L)"))
        inverses = torch.where(residuals > 0, 1 / torch.where(residuals > 0, residuals, 1.0), 0.0)
        kernel = inverses[:, None] * step.exact_gramian() * inverses
        trace, damping = kernel.trace(), self._next_damping(step)
        trace = torch.where(trace > 0, trace, 1.0)
        shift = damping * trace * torch.eye(step.tasks, dtype=torch.float64)
        weights = (1 + damping) * trace * inverses * torch.linalg.solve(kernel + shift, residuals)
        return StageResult(weights, aux=((1 + damping) * trace, damping))

    def _next_damping(self, step: Step) -> float:
        if not self.adaptive or self.last < 0:
            return self.damping
        rejected = self.last == float(step.losses.sum())
        return min(self.current * RAISED, LARGEST) if rejected else max(self.current * LOWERED, SMALLEST)

    def paper_scale(self, step: Step) -> Tensor:
        scale: Tensor = step.tasks / step.aux[0]
        return scale

    def measured(self, step: Step) -> Mapping[str, float]:
        return {"damping": step.aux[1]}

    def update(self, step: Step) -> dict[str, Any]:
        return {"current": step.aux[1], "last": float(step.losses.sum())}


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GaussNewton,
        summary="damped Gauss-Newton (Levenberg-Marquardt, natural gradient) on losses that are squared residuals",
        reference="Guzmán-Cordero et al. 2025, arXiv 2505.12149",
        traits={"differentiable", "stateful", "loss_scale_invariant", *EQUIVARIANT},
        needs={"gramian", "losses"},
        max_tasks=8192,
    )

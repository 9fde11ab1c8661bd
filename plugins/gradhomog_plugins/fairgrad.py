"""FairGrad: the direction that divides the improvement among the tasks by α-fairness."""

from typing import Annotated

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, bargaining_weights, gramian_rounding, hookimpl
from gradhomog_plugins import EQUIVARIANT


def bargaining_stage(step: Step, alpha: float) -> StageResult:
    """Return weights `[tasks]` of ⟨g_0, d⟩/‖d‖² · d for the bargaining direction d, and aux for `paper_factor`."""
    gramian = step.gramian()
    solution = bargaining_weights(gramian, alpha, gramian_rounding(step.dtype))
    weights, aux = projection_weights(gramian, solution.weights)
    return StageResult(weights, aux, bool(solution.converged))


def projection_weights(gramian: Tensor, weights: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the weights of the mean's projection on Σ_i w_i g_i, their ratio to w, and the length of Σ_i w_i g_i."""
    gains = gramian @ weights  # ⟨g_i, d⟩
    square = weights @ gains  # ‖d‖²
    no_solution = square <= 0  # w = 0
    square = torch.where(no_solution, 1.0, square)
    ratio = torch.where(no_solution, 1.0, gains.sum() / square)
    return weights * ratio, (ratio, square.sqrt())


def paper_factor(step: Step, max_norm: float | None) -> Tensor:
    """Return the ratio of the paper's step, clipped to the length `max_norm`, to that of `bargaining_stage`."""
    ratio, length = step.aux
    factor: Tensor = step.tasks / ratio
    return factor if max_norm is None else factor * (max_norm / length).clamp_max(1.0)


class FairGrad(Homogenizer):
    """Maximize Σ_i ⟨g_i, d⟩^(1−α)/(1−α) over directions on a sphere: an α-fair division of the tasks' gains ⟨g_i, d⟩.

        d̃ = Σ_i w_i g_i,  (Gw)_i = w_i^(−1/α) for all i
        d = ⟨g_0, d̃⟩/‖d̃‖² · d̃,  g_0 = 1/N Σ_i g_i;  paper's scale: d = d̃

    Args:
        alpha: α in [0.25, 20]. 1 is Nash-MTL (proportional fairness); 2 minimizes the potential delay. As α falls to 0,
            all tasks count equally (`dualproj`); as it grows, only the task that gains least counts (`mgda`).
        max_norm: the length that d is clipped to in the paper's scale, and only there; None does not clip.

    Use it when rows conflict and you want to choose between the mean gain (small α) and the smallest gain (large α).
    Every task gains, since ⟨g_i, d̃⟩ = w_i^(−1/α) > 0. Where no direction improves all tasks, as with opposite rows and
    often with more rows than dimensions, d = 0 and training stops.

    The length of d̃ is a power of the gradients' length. Zero rows are ignored. If the convex hull of the other rows
    contains zero (up to 1e-3 of their length for float32 rows, 1e-7 for float64), d = 0. Exact: see
    `gradhomog.bargaining_weights`.

    Differentiable twice in the rows.

    State: none.

    Cost: 0.2 ms for 16 tasks.

    Source: Ban and Ji 2024, "Fair Resource Allocation in Multi-Task Learning", arXiv 2402.15638, equation 4 and
    algorithm 1; α = 2 in the scripts of their experiments.

    Deviations: (1) Newton's method; the authors and TorchJD call SciPy's least squares from uniform weights. (2) No
    clipping unless `max_norm` is set; the authors' code multiplies by N and clips to 1. (3) The default of `alpha` is
    that of the experiments; the authors' parser has 1. (4) The projection of the mean on d̃, unless scale="paper".

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("fairgrad(scale='paper')").combine(torch.tensor([[8.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 1.0000])
    """

    def __init__(
        self, alpha: Annotated[float, Interval(ge=0.25, le=20)] = 2.0, max_norm: Annotated[float, Gt(0)] | None = None
    ) -> None:
        self.alpha, self.max_norm = alpha, max_norm

    def mix(self, step: Step) -> StageResult:
        return bargaining_stage(step, self.alpha)

    def paper_scale(self, step: Step) -> Tensor:
        return paper_factor(step, self.max_norm)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=FairGrad,
        summary="the direction that divides the improvement among the tasks by alpha-fairness",
        reference="Ban and Ji 2024, arXiv 2402.15638",
        traits={"differentiable", "non_conflicting", *EQUIVARIANT},
        needs={"gramian"},
    )

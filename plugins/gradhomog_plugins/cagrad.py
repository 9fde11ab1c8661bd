"""CAGrad: the direction in a ball around the mean gradient that maximizes the smallest improvement of a task."""

from typing import Annotated

from annotated_types import Ge

from gradhomog import (
    Homogenizer,
    HomogenizerSpec,
    StageResult,
    Step,
    conflict_averse_weights,
    gramian_rounding,
    hookimpl,
)


class CAGrad(Homogenizer):
    """Maximize the smallest inner product with a row over a ball around the mean g_0 of the rows.

        d = argmax min_i ⟨g_i, d⟩ over ‖d − g_0‖ ≤ c ‖g_0‖, divided by 1 + c
        g_0 = 1/N Σ_i g_i;  paper's scale: not divided

    Args:
        c: radius of the ball relative to ‖g_0‖, ≥ 0. 0 is the mean; below 1 only stationary points of the mean loss
            stop the method; as c grows, d approaches that of MGDA.

    Use it when rows conflict and the worst task improves too slowly, but the mean loss is still the objective. It does
    not balance units: the task with the smallest inner product is often the one with the shortest row, so losses of
    different magnitude decide which task counts as the worst.

    No direction improves a zero row: d is then the projection of g_0 on the directions that conflict with no row, if it
    is in the ball. A pair of opposite rows has the effect of a zero row; float32 rows that are opposite up to 1e-3
    (bfloat16: 1e-2) count as opposite. g_0 = 0 gives d = 0. By the formula, N identical rows give (1 + c) times that
    row; hence the division. Exact: see `gradhomog.conflict_averse_weights`.

    Differentiable in the rows where the set of tasks with the smallest inner product does not change.

    State: none.

    Cost: 0.4 ms for 16 tasks, at most 0.2 s for 256.

    Source: Liu et al. 2021, "Conflict-Averse Gradient Descent", arXiv 2110.14048, equation 3 and algorithm 1; c = 0.4
    there for NYUv2 and Cityscapes.

    Deviations: (1) The division by 1 + c. The authors' code divides by 1 + c² for vision and by 1 + c for the toy
    problem, LibMTL by 1 + c², TorchJD does not divide, and several implementations multiply by N. (2) Exact and without
    epsilon. The authors' code adds 1e-8 in four places and stops SLSQP early; TorchJD 0.18 returns zero where all
    gradients together are small (below 0.01) or their norms differ by a large factor (1e-4 to 1e4).

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("cagrad").combine(torch.tensor([[3.0, 0.0], [-1.0, 1.0]]))
    tensor([0.4884, 0.5830])
    """

    def __init__(self, c: Annotated[float, Ge(0)] = 0.4) -> None:
        self.c = c

    def mix(self, step: Step) -> StageResult:
        solution = conflict_averse_weights(step.gramian(), self.c, gramian_rounding(step.dtype))
        return StageResult(step.tasks / (1 + self.c) * solution.weights, converged=bool(solution.converged))

    def paper_scale(self, step: Step) -> float:
        return 1 + self.c


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=CAGrad,
        summary="maximizes the smallest improvement of a task, in a ball around the mean gradient",
        reference="Liu et al. 2021, arXiv 2110.14048",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

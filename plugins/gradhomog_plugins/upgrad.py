"""UPGrad: every task's gradient, projected on the directions that conflict with no task."""

import torch

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, dual_cone_weights, gramian_rounding, hookimpl
from gradhomog_plugins import EQUIVARIANT
from gradhomog_plugins._per_task import Preferences, relative_weights


class UPGrad(Homogenizer):
    """Project each row on the directions that have no negative inner product with any row.

        ĝ_i = argmin ‖ĝ − g_i‖² over ⟨g_j, ĝ⟩ ≥ 0 for all j;  ĝ_i = Σ_j C_ij g_j, C_i = argmin vᵀGv over v ≥ e_i
        d = 1/N Σ_i ω_i ĝ_i,  ω_i = w_i / mean_j w_j

    Args:
        weights: w_i ≥ 0, a list by position or a dict by name of a task, with the entry `"*"` for other names, as in
            `static`; by default all equal.

    Use it when rows conflict and the step must raise no task's loss to first order: like PCGrad, but d conflicts with
    no row for any number of tasks. Where no rows conflict it is the plain mean: it does not balance norms, and long
    rows still dominate.

    Weights prefer a task without harm to another: d conflicts with no row for any weights, and where no rows conflict
    it is that of `static`. A task of weight zero is still a constraint. As in `static`, the mean of w is also over
    absent tasks: names in `weights`, and those of earlier steps.

    For two rows of equal weight it is PCGrad. A zero row stays zero; opposite rows keep the parts that are orthogonal
    to them. Exact: see `gradhomog.dual_cone_weights`.

    Differentiable in the rows where the set of tasks with C_ij > 0 does not change.

    State: none.

    Cost: N programs of N×N, O(N⁴): 0.2 ms for 16 tasks, 0.05 s for 64, 0.2 to 0.8 s for 256; where rows are about twice
    as many as their dimensions, 2 to 7 s for 256; 20 s to 4 min and 0.1 GB for 1,024, which is the limit. With
    `create_graph=True` N³ numbers are kept several times, each time 8.6 GB for 1,024 tasks.

    Source: Quinton and Rey 2024, "Jacobian Descent for Multi-Objective Optimization", arXiv 2406.16232, equation 5 and
    proposition 1.

    Deviations: (1) The projections are exact. TorchJD 0.18 (by the same authors) adds 1e-4 to the diagonal of the
    Gramian, and treats a Gramian whose trace is below 1e-4 as zero: its direction is the plain mean where the gradients
    are small (below 0.01 together), is 2 to 10 % off where norms differ by orders of magnitude, and still conflicts
    there. (2) w is divided by its mean; TorchJD multiplies by its `pref_vector`, the same for a sum of one.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("upgrad").combine(torch.tensor([[3.0, 0.0], [-1.0, 1.0]]))
    tensor([0.7500, 1.2500])
    """

    def __init__(self, weights: Preferences = None) -> None:
        self.weights, self.weights_absent = weights, weights is not None

    def mix(self, step: Step) -> StageResult:
        each = torch.eye(step.tasks, dtype=torch.float64)
        solution = dual_cone_weights(step.gramian(), each, gramian_rounding(step.dtype))
        weights = relative_weights(self.weights, step)
        return StageResult(weights[:, None] * solution.weights, converged=bool(solution.converged.all()))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=UPGrad,
        summary="every task's gradient, projected on the directions that conflict with no task",
        reference="Quinton and Rey 2024, arXiv 2406.16232",
        traits={"differentiable", "non_conflicting", *EQUIVARIANT},
        needs={"gramian"},
        max_tasks=1024,
    )

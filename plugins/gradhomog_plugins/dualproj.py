"""DualProj: the mean gradient, projected on the directions that conflict with no task."""

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, dual_cone_weights, gramian_rounding, hookimpl
from gradhomog_plugins import EQUIVARIANT
from gradhomog_plugins._per_task import Preferences, relative_weights


class DualProj(Homogenizer):
    """Project the (weighted) mean g_0 of the rows on the directions that have no negative inner product with any row.

        d = argmin ‖d − g_0‖² over ⟨g_i, d⟩ ≥ 0 for all i,  g_0 = 1/N Σ_i ω_i g_i
        d = Σ_i v_i g_i,  v = argmin vᵀGv over v ≥ ω/N,  ω_i = w_i / mean_j w_j

    Args:
        weights: w_i ≥ 0, a list by position or a dict by name of a task, with the entry `"*"` for other names, as in
            `static`; by default all equal.

    Use it when the mean gradient has a negative inner product with some row, so that the loss of that task rises while
    others dominate the step. Where the mean conflicts with no row, it changes nothing: it neither balances norms nor
    favours tasks with short rows.

    Weights prefer a task without harm to another: d conflicts with no row for any weights, and where g_0 conflicts with
    no row it is that of `static`. As in `static`, the mean of w is also over absent tasks: names in `weights`, and
    those of earlier steps.

    A zero row counts in the mean only. For opposite rows, d is the part of the mean that is orthogonal to them. Exact:
    see `gradhomog.dual_cone_weights`. In half precision d itself is rounded, so that its conflicts are up to 2e-4 of
    ‖g_i‖ max_j ‖g_j‖ in float16 and 1.3e-3 in bfloat16, and up to 4e-3 and 4e-2 of ‖g_i‖ ‖d‖ for a d that is a
    hundredth of the mean (measured for 3 rows of 2 parameters).

    Differentiable in the rows where the set of tasks with v_i > ω_i/N does not change.

    State: none.

    Cost: 0.1 ms for 16 tasks.

    Source: Lopez-Paz and Ranzato 2017, "Gradient Episodic Memory", arXiv 1706.08840, equations 8 to 11, with the mean
    of the tasks as the projected vector, as in Quinton and Rey 2024, arXiv 2406.16232, section 4.

    Deviations: (1) The projection is exact. The authors' and TorchJD's code add 1e-3 and 1e-4 to the diagonal of the
    Gramian: TorchJD 0.18's direction is the plain mean where the gradients are small (below 0.01 together), is 2 to 10
    % off where norms differ by orders of magnitude, and still conflicts there. (2) GEM's margin is zero, as in TorchJD.
    (3) w is divided by its mean; TorchJD's `pref_vector` is ω/N, the same for a sum of one.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("dualproj").combine(torch.tensor([[3.0, 0.0], [-1.0, 1.0]]))
    tensor([0.7500, 0.7500])
    """

    def __init__(self, weights: Preferences = None) -> None:
        self.weights, self.weights_absent = weights, weights is not None

    def mix(self, step: Step) -> StageResult:
        # N times the paper's weights, as the step is the mean: the constraint is v ≥ ω.
        weights = relative_weights(self.weights, step)
        solution = dual_cone_weights(step.gramian(), weights, gramian_rounding(step.dtype))
        return StageResult(solution.weights, converged=bool(solution.converged))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=DualProj,
        summary="the mean gradient, projected on the directions that conflict with no task",
        reference="Lopez-Paz and Ranzato 2017, arXiv 1706.08840; Quinton and Rey 2024, arXiv 2406.16232",
        traits={"differentiable", "non_conflicting", *EQUIVARIANT},
        needs={"gramian"},
    )

"""FairGrad: the step that shares its use among the tasks by alpha-fairness."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, bargaining_weights, hookimpl
from gradhomog_plugins._bargained import check_max_norm, step_weights


class FairGrad(Homogenizer):
    """The direction on a sphere that maximises Σ_i ⟨g_i, d⟩^(1−α)/(1−α), what each task gains being fairly shared.

    d = Σ_i w_i g_i,  (Gw)_i = w_i^(−1/α) for all i  (`scale="paper"`)
    ⟨g_0, d⟩/‖d‖² · d, the projection of the mean g_0 of the rows on it  (`scale="mean"`)

    Args:
        alpha: α in [0.25, 20]: 1 is Nash-MTL (proportional fairness), 2 minimises the potential delay; towards 0 all
            tasks count alike whatever they gain, towards infinity only the one that gains least.
        max_norm: with `scale="paper"`, clip d to this length; None does not.
        scale: see above. The length of the paper's step is a power of the gradients', so with `"mean"` a common factor
            of the gradients is one of the step, and N identical rows give that row.

    Every ⟨g_i, d⟩ = w_i^(−1/α) is positive: no conflict.

    Differentiable in the rows, twice. A zero row has no say: it is left out. Where the hull of the others holds zero
    (opposite rows, more rows than dimensions; up to 1e-4 of their length) no step is of use to all, and d = 0. State:
    none. Exact: see `gradhomog.bargaining_weights`. Cost: 0.2 ms for 16 tasks.

    Source: Ban and Ji 2024, "Fair Resource Allocation in Multi-Task Learning", arXiv 2402.15638, equation 4 and
    algorithm 1; α = 2 in the scripts of their experiments.

    Deviations: (1) Newton's method, where the authors and TorchJD call SciPy's least squares from uniform weights; (2)
    no clipping unless `max_norm` is set, where the authors' code multiplies by N and clips to 1; (3) the default of
    `alpha` is that of the experiments, the authors' parser has 1; (4) `scale="mean"`.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("fairgrad(scale='paper')").combine(torch.tensor([[8.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 1.0000])
    """

    def __init__(
        self, alpha: float = 2.0, max_norm: float | None = None, scale: Literal["mean", "paper"] = "mean"
    ) -> None:
        if not 0.25 <= alpha <= 20:
            limit = (
                "Towards 0 it is `dualproj`, which is `none` where the mean conflicts with no task."
                if alpha < 1
                else "Towards infinity it is `mgda`."
            )
            raise OptionError(f"fairgrad: `alpha` must be in [0.25, 20]; got {alpha!r}. {limit}")
        check_max_norm("fairgrad", max_norm, scale)
        self.alpha, self.max_norm, self.scale = alpha, max_norm, scale

    def mix(self, evidence: Evidence) -> Tensor:
        gramian = evidence.gramian()
        return step_weights(gramian, bargaining_weights(gramian, self.alpha), self.scale, self.max_norm)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=FairGrad,
        summary="the step that shares its use among the tasks by alpha-fairness",
        reference="Ban and Ji 2024, arXiv 2402.15638",
        traits={
            "differentiable",
            "permutation_equivariant",
            "scale_equivariant",
            "rotation_equivariant",
            "non_conflicting",
        },
        needs={"gramian"},
    )

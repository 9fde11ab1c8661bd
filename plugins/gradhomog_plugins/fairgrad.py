"""FairGrad: the step whose gains are alpha-fair among the tasks."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl
from gradhomog_plugins._bargaining import bargaining_stage, paper_factor


class FairGrad(Homogenizer):
    """The direction on a sphere that maximises Σ_i ⟨g_i, d⟩^(1−α)/(1−α), so that gains are shared fairly.

    d = Σ_i w_i g_i,  (Gw)_i = w_i^(−1/α) for all i;  the step is ⟨g_0, d⟩/‖d‖² · d, g_0 the mean of the rows
    in the paper's scale the step is d itself, whose length is a power of the gradients'

    Args:
        alpha: α in [0.25, 20]: 1 is Nash-MTL (proportional fairness), 2 minimises the potential delay; towards 0 all
            tasks count alike (`dualproj`), towards infinity only the one that gains least (`mgda`).
        max_norm: the length that d is clipped to in the paper's scale, in no other; None does not clip.

    Every ⟨g_i, d⟩ = w_i^(−1/α) is positive: no conflict.

    Differentiable in the rows, twice. Zero rows are ignored. Where the hull of the others holds zero (opposite rows,
    more rows than dimensions; up to 1e-3 of their length for float32 rows, 1e-7 for float64) no step improves all, and
    d = 0. State: none. Exact: see `gradhomog.bargaining_weights`. Cost: 0.2 ms for 16 tasks.

    Source: Ban and Ji 2024, "Fair Resource Allocation in Multi-Task Learning", arXiv 2402.15638, equation 4 and
    algorithm 1; α = 2 in the scripts of their experiments.

    Deviations: (1) Newton's method, where the authors and TorchJD call SciPy's least squares from uniform weights; (2)
    no clipping unless `max_norm` is set, where the authors' code multiplies by N and clips to 1; (3) the default of
    `alpha` is that of the experiments, the authors' parser has 1; (4) the projection of the mean on d, unless
    scale="paper".

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("fairgrad(scale='paper')").combine(torch.tensor([[8.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 1.0000])
    """

    def __init__(
        self,
        alpha: Annotated[float, Interval(ge=0.25, le=20)] = 2.0,
        max_norm: Annotated[float, Gt(0)] | None = None,
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

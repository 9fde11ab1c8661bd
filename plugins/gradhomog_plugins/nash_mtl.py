"""Nash-MTL: the Nash bargaining solution of the tasks."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl
from gradhomog_plugins._bargaining import bargaining_stage, paper_factor


class NashMTL(Homogenizer):
    """The Nash bargaining solution: the direction on a sphere that maximises Π_i ⟨g_i, d⟩.

    d = Σ_i α_i g_i,  α_i (Gα)_i = 1 for all i;  the step is ⟨g_0, d⟩/‖d‖² · d, g_0 the mean of the rows
    in the paper's scale the step is d itself, ‖d‖ = √N for gradients of any size

    Args:
        max_norm: the length that d is clipped to in the paper's scale, in no other; None does not clip.

    Every ⟨g_i, d⟩ = 1/α_i is positive: no conflict. The direction does not depend on the rows' lengths: of two rows it
    is the one that bisects their angle.

    Differentiable in the rows, twice. Zero rows are ignored. Where the hull of the others holds zero (opposite rows,
    more rows than dimensions; up to 1e-3 of their length for float32 rows, 1e-7 for float64) the tasks have nothing to
    agree on, and d = 0: the disagreement point of the game. State: none. Exact: see `gradhomog.bargaining_weights`.
    Cost: 0.2 ms for 16 tasks.

    Source: Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", arXiv 2202.01017, claim 3.1 and algorithm 1.

    Deviations: (1) Newton's method on the equation; the paper, its code and TorchJD solve up to 20 linearised programs
    and go on with the last weights when their solver fails, in silence: for 16 random rows of norms from 0.1 to 10,
    TorchJD 0.18's weights leave max |α_i (Gα)_i − 1| between 8 and 450 (measured); (2) no clipping unless `max_norm` is
    set, where the authors' code clips to 1; (3) the weights are those of this step: `update_weights_every` saved the
    cost of the programs, and nothing is carried; (4) the projection of the mean, unless scale="paper".

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("nash_mtl(scale='paper')").combine(torch.tensor([[3.0, 0.0], [0.0, 0.1]]))
    tensor([1., 1.])
    """

    def __init__(self, max_norm: Annotated[float, Gt(0)] | None = None) -> None:
        self.max_norm = max_norm

    def mix(self, step: Step) -> StageResult:
        return bargaining_stage(step, alpha=1.0)

    def paper_scale(self, step: Step) -> Tensor:
        return paper_factor(step, self.max_norm)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=NashMTL,
        summary="the step that the tasks would agree on when they bargain for it",
        reference="Navon et al. 2022, arXiv 2202.01017",
        traits={
            "differentiable",
            "permutation_equivariant",
            "scale_equivariant",
            "rotation_equivariant",
            "non_conflicting",
        },
        needs={"gramian"},
    )

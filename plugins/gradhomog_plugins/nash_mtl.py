"""Nash-MTL: the Nash bargaining solution of the tasks."""

from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl
from gradhomog_plugins import EQUIVARIANT
from gradhomog_plugins.fairgrad import bargaining_stage, paper_factor


class NashMTL(Homogenizer):
    """The Nash bargaining solution: the direction on a sphere that maximizes Π_i ⟨g_i, d⟩.

        d̃ = Σ_i α_i g_i,  α_i (Gα)_i = 1 for all i
        d = ⟨g_0, d̃⟩/‖d̃‖² · d̃,  g_0 = 1/N Σ_i g_i;  paper's scale: d = d̃, with ‖d̃‖ = √N for gradients of any size

    Args:
        max_norm: the length that d is clipped to in the paper's scale, and only there; None does not clip.

    Use it when rows conflict and their norms differ by orders of magnitude: no task loses, since ⟨g_i, d̃⟩ = 1/α_i > 0,
    and the direction does not depend on the lengths of the rows. Where no direction improves all tasks, as with
    opposite rows and often with more rows than dimensions, d = 0 and training stops. A row that is mostly noise has as
    much influence as the others.

    For two rows, d has the direction of the bisector of their angle. Zero rows are ignored. If the convex hull of the
    other rows contains zero (up to 1e-3 of their length for float32 rows, 1e-7 for float64), no agreement exists and d
    = 0, the disagreement point of the game. Exact: see `gradhomog.bargaining_weights`.

    Differentiable twice in the rows.

    State: none.

    Cost: 0.2 ms for 16 tasks.

    Source: Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", arXiv 2202.01017, claim 3.1 and algorithm 1.

    Deviations: (1) Newton's method on the equation. The paper, its code and TorchJD solve up to 20 linearized programs
    and, if their solver fails, silently use the last weights: for 16 random rows of norms from 0.1 to 10, TorchJD
    0.18's weights leave max |α_i (Gα)_i − 1| between 8 and 450 (measured). (2) No clipping unless `max_norm` is set;
    the authors' code clips to 1. (3) The weights are those of this step, without state; `update_weights_every` reduces
    the cost of the programs, which are not needed here. (4) The projection of the mean on d̃, unless scale="paper".

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
        summary="the Nash bargaining solution: maximizes the product of the tasks' improvements",
        reference="Navon et al. 2022, arXiv 2202.01017",
        traits={"differentiable", "non_conflicting", *EQUIVARIANT},
        needs={"gramian"},
    )

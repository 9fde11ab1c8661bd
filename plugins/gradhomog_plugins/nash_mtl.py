"""Nash-MTL: the step that the tasks would agree on when they bargain for it."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, bargaining_weights, hookimpl
from gradhomog_plugins._bargained import check_max_norm, step_weights


class NashMTL(Homogenizer):
    """The Nash bargaining solution: the direction on a sphere that maximises Π_i ⟨g_i, d⟩.

    d = Σ_i α_i g_i,  α_i (Gα)_i = 1 for all i  (`scale="paper"`: ‖d‖ = √N whatever the gradients' size)
    ⟨g_0, d⟩/‖d‖² · d, the projection of the mean g_0 of the rows on it  (`scale="mean"`)

    Args:
        max_norm: with `scale="paper"`, clip d to this length; None does not.
        scale: see above. The paper's step has no scale of its own, so with `"mean"` a common factor of the gradients is
            one of the step, and N identical rows give that row.

    Every ⟨g_i, d⟩ = 1/α_i is positive: no conflict. The direction does not depend on the rows' lengths: of two rows it
    is the one that bisects their angle.

    Differentiable in the rows, twice. A zero row has no say: it is left out. Where the hull of the others holds zero
    (opposite rows, more rows than dimensions; up to 1e-4 of their length) the tasks have nothing to agree on, and
    d = 0: the disagreement point of the game. State: none. Exact: see `gradhomog.bargaining_weights`. Cost: 0.2 ms for
    16 tasks.

    Source: Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", arXiv 2202.01017, claim 3.1 and algorithm 1.

    Deviations: (1) Newton's method on the equation; the paper, its code and TorchJD solve up to 20 linearised programs
    and go on with the last weights when their solver fails, in silence: for 16 random rows of norms from 0.1 to 10,
    TorchJD 0.18's weights leave max |α_i (Gα)_i − 1| between 8 and 450 (measured); (2) no clipping unless `max_norm` is
    set, where the authors' code clips to 1; (3) the weights are those of this step: `update_weights_every` saved the
    cost of the programs, and nothing is carried; (4) `scale="mean"`.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("nash_mtl(scale='paper')").combine(torch.tensor([[3.0, 0.0], [0.0, 0.1]]))
    tensor([1., 1.])
    """

    def __init__(self, max_norm: float | None = None, scale: Literal["mean", "paper"] = "mean") -> None:
        check_max_norm("nash_mtl", max_norm, scale)
        self.max_norm, self.scale = max_norm, scale

    def mix(self, evidence: Evidence) -> Tensor:
        gramian = evidence.gramian()
        return step_weights(gramian, bargaining_weights(gramian), self.scale, self.max_norm)


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

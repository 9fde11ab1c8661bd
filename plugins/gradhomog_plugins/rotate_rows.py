"""Rotation of the rows: rotate each task's gradient towards the mean direction by a limited angle."""

import math
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, cosines, hookimpl

# The error of Gramians of float32 rows is about 1e-7 of the product of the norms.
# Squared length of the sum of unit rows, per row, below which this error could rotate the sum: no mean direction.
NOTHING = 1e-4
# Squared sine of the angle to the mean direction below which a row and the mean direction span no plane.
PARALLEL = 1e-6


class RotateRows(Homogenizer):
    """Rotate each row g_i towards the mean direction v, in the plane of g_i and v, and keep its norm.

        u_i = g_i/‖g_i‖,  v = Σ_j u_j / ‖Σ_j u_j‖,  θ_i = ∠(u_i, v),  α_i = min(θ_i, max_angle)
        ĝ_i = ‖g_i‖ (sin(θ_i − α_i) u_i + sin(α_i) v) / sin θ_i,  an N × N mixing matrix of the Gramian
        d = 1/N Σ_i ĝ_i

    Args:
        max_angle: in [0, π], radians. π aligns all rows except those opposite to v; 0 is the plain learner.

    Use it when the cosines of the rows are low or negative, but their norms should be kept. It does not balance norms,
    and a row that is opposite to the mean direction is not changed. d remains in the span of the rows. Rows of few-shot
    tasks are nearly orthogonal; for orthogonal rows this method only weights each row in proportion to 1/‖g_i‖ and
    makes the step longer, which `reweight` can do too.

    `rotate` acts on the encoder's gradients through features; this method acts on the gradients themselves. A zero row,
    a row within 1e-3 radians of v or of its opposite, and all rows where ‖Σ u_j‖² ≤ 1e-4 N are unchanged: below that,
    rounding of float32 rows would decide.

    Differentiable in the rows, except where an angle reaches the limit.

    State: none.

    Cost: one Gramian and one read of the rows; O(N²).

    Source: none for this form; equation 6 of RotoGBML (Zhang et al. 2023, arXiv 2303.06679) for the gradients ∇_θ
    instead of ∇_z. The paper mentions ∇_θ, but does not use it because of its size. Here all computations are in the
    span of the N rows, so this size does not matter.

    Deviations: (1) Gradients w.r.t. parameters instead of features, and a closed form instead of a learned rotation.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("rotate_rows").combine(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    tensor([1.4142, 1.4142])
    """

    def __init__(self, max_angle: Annotated[float, Interval(ge=0, le=math.pi)] = math.pi) -> None:
        self.max_angle = max_angle

    def mix(self, step: Step) -> Tensor:
        norms, between = step.norms(), cosines(step.gramian())
        size = between.sum()  # ‖Σ u_j‖²: unit rows
        present = norms > 0
        if not bool(size > NOTHING * len(norms)):
            return torch.ones_like(norms)
        share = present.to(norms) / size.sqrt()  # v = Σ_j share_j u_j
        to_mean = (between @ share).clamp(-1, 1)
        sines = (1 - to_mean.square()).clamp_min(0)
        turns = present & (sines > PARALLEL)
        sine = torch.where(turns, sines, 1.0).sqrt()
        angle = torch.where(turns, torch.atan2(sine, to_mean), 0.0)  # atan2(0, 0) has no derivative
        turn = angle.clamp(max=self.max_angle)
        own = torch.where(turns, torch.sin(angle - turn) / sine, 1.0)
        other = torch.where(turns, torch.sin(turn) / sine, 0.0)
        inverse = torch.where(present, 1 / torch.where(present, norms, 1.0), 0.0)
        return torch.diag(own) + (norms * other)[:, None] * (share * inverse)[None, :]


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=RotateRows,
        summary="rotates each gradient towards their mean direction, by a limited angle",
        reference="after Zhang et al. 2023, arXiv 2303.06679, equation 6",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian", "norms"},
    )

"""DCGD: a direction from the dual cone of the rows, near the plain mean."""

from typing import Literal

import torch
from torch import Tensor

from gradhomog import (
    Homogenizer,
    HomogenizerSpec,
    Solution,
    StageResult,
    Step,
    dual_cone_weights,
    gramian_rounding,
    hookimpl,
)
from gradhomog_plugins._unit_rows import gramian_of_close_rows
from gradhomog_plugins.config import conflict_free_weights


class DCGD(Homogenizer):
    """Replace the sum s of the rows by a vector in their dual cone (`center`: if one with equal cosines exists).

        s = Σ_i g_i,  K* = {v : ⟨g_i, v⟩ ≥ 0 for all i},  P the projection onto K*
        d_c = argmin ‖d_c‖ over ⟨g_i, d_c⟩ = ‖g_i‖ for all i
        center:      d = 1/N ⟨s, d_c⟩ / ‖d_c‖² · d_c;  for two rows d_c is parallel to g_1/‖g_1‖ + g_2/‖g_2‖
        projection:  d = 1/N P(s)
        average:     d = 1/N s where s is in K*, else 1/N · 1/M Σ_i P(g_i), M the number of nonzero rows
        paper's scale: without 1/N

    Args:
        variant: the vector of K*, as above.

    Use it when two losses conflict and their gradients differ in length, as the residual and the boundary conditions of
    a physics-informed network. It is harmful where a row is mostly noise: `"center"` gives a short noisy row as much
    influence as a long one. `"projection"` and `"average"` do not balance lengths. `"average"` is not continuous: where
    s leaves K*, the length of d jumps.

    With their default options this and `config` are the same method, for any number of tasks.

    The paper has two rows: the residual, and all boundary and initial conditions together. For its exact method pass
    the sum of these losses as one loss, which also saves backward passes. For N rows, each variant is extended so that
    it agrees with the paper for two:

        center:      config, equal cosines with all rows; the sum of N unit rows is outside K* for some N > 2
        projection:  dualproj
        average:     the mean of the rows, or upgrad/M where s conflicts

    The paper's projections of s, orthogonal to one row each, are for two rows those of the other row on K*; for more
    rows they are outside K*. The first assumption of the paper's theorem, 2⟨s, d⟩ ≥ ‖d‖² in its scale, holds for all N:
    K* contains P(g_i), hence ⟨s, P(g_i)⟩ ≥ ‖P(g_i)‖². Rows so dependent that no vector has equal cosines are treated by
    `"center"` as by `config`, which may then conflict.

    Opposite rows give d = 0 if no other row adds to them; a zero row counts in s only. An inner product with s that is
    negative by rounding is no conflict.

    Differentiable in the rows where the same rows are active in P, their rank does not change and s does not cross the
    boundary of K*.

    State: none.

    Cost: `"center"` one pseudo-inverse of an N×N matrix, `"projection"` one program of N×N, `"average"` N of them.

    Source: Hwang and Lim 2024, "Dual Cone Gradient Descent for Training Physics-Informed Neural Networks", arXiv
    2409.18426, algorithm 1 and the three algorithms of its appendix E.

    Deviations: (1) N rows, as above; the authors' code adds the boundary losses. (2) It never stops. Algorithm 1 ends
    training where the cosine of the two rows is below −1 + α or ‖s‖ below a threshold; the authors' code sets a flag
    for the first condition with α = 1e-8, but does not return it, and continues with a quotient of rounding errors.
    Near opposite rows, d here tends to zero. (3) No epsilon; the code adds 1e-8 to norms. (4) For `"average"` and
    `"projection"` the code leaves s unchanged where it is in K*, although its rows may conflict; so does this one.

    >>> import torch, gradhomog
    >>> rows = torch.tensor([[3.0, 0.0], [-1.0, 1.0]])
    >>> gradhomog.pipeline("dcgd(variant='projection')").combine(rows)
    tensor([0.7500, 0.7500])
    """

    def __init__(self, variant: Literal["center", "projection", "average"] = "center") -> None:
        self.variant = variant

    def mix(self, step: Step) -> StageResult:
        if self.variant == "center":
            gramian, rounding = gramian_of_close_rows(step)
            return StageResult(conflict_free_weights(gramian, "projection", rounding))
        gramian, rounding = step.gramian(), gramian_rounding(step.dtype)
        weights, converged = (projection_weights if self.variant == "projection" else average_weights)(
            gramian, rounding
        )
        return StageResult(weights, converged=bool(converged.all()))

    def paper_scale(self, step: Step) -> float:
        return step.tasks


def projection_weights(gramian: Tensor, rounding: float) -> Solution:
    """Return weights of P(s), float64 `[tasks]`."""
    return dual_cone_weights(gramian, torch.ones_like(gramian[0]), rounding)


def average_weights(gramian: Tensor, rounding: float) -> Solution:
    """Return weights of s if it is in K*, else of the mean of the nonzero rows' projections, float64 `[tasks]`."""
    plain = torch.ones_like(gramian[0])
    norms = gramian.detach().diagonal().sqrt()
    if bool((gramian.detach().sum(dim=1) >= -rounding * norms * norms.sum()).all()):
        return Solution(plain, torch.ones_like(plain[0], dtype=torch.bool))
    each = dual_cone_weights(gramian, torch.eye(len(gramian), dtype=gramian.dtype, device=gramian.device), rounding)
    return Solution((each.weights * norms.sign()[:, None]).sum(dim=0) / norms.sign().sum(), each.converged)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=DCGD,
        summary="a direction from the dual cone of the tasks' gradients: its center, a projection or an average",
        reference="Hwang and Lim 2024, arXiv 2409.18426",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

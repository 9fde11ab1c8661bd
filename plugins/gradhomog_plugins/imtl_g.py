"""IMTL-G: the step whose projections on all tasks' gradients are equal."""

import numpy as np
import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, gramian_rounding, hookimpl
from gradhomog_plugins._unit_rows import arrays, equal_cosines, gramian_of_close_rows


class IMTLG(Homogenizer):
    """The step Σ_i w_i g_i with Σ_i w_i = 1 whose projections on the directions of all rows are equal.

        n_i = ‖g_i‖,  U the cosines of the rows,  y = U⁺1,  v_i = y_i / n_i
        w = v / max(Σ_i v_i, b),  d = Σ_i w_i g_i
        b = N Σ_i y_i / (max_i n_i · Σ_i (U y)_i),  so that ‖d‖ ≤ max_i n_i times the mean cosine of d with the rows

    Use it when norms differ and long rows dominate the step: the projections of d on the directions of all rows are
    equal, independent of the rows' norms. d has the direction of `config` and another length. It is harmful where a row
    is mostly noise, because a short noisy row constrains the direction as much as a long one.

    Where no weight is negative, the bound on ‖d‖ holds without b. Otherwise Σ_i v_i may be near zero, and the paper's d
    is unbounded; or negative, and the paper's d points against all tasks at once. With the bound, d always has the
    direction of Û⁺1, Û the matrix of the rows divided by their norms.

    For independent rows, the cosines with d are equal and positive. For parallel rows of different norms w is
    undetermined; here w_i ∝ 1/n_i, the limit for rows that become parallel. If rows are too dependent for equal
    cosines, d is the least-squares solution and may conflict with some rows; opposite rows give d = 0. Zero rows have
    weight zero. Which rows count as parallel, and the accuracy for float32 rows: as for `config`.

    Differentiable in the rows where their rank does not change.

    State: none.

    Cost: one pseudo-inverse of an N×N matrix.

    Source: Liu et al. 2021, "Towards Impartial Multi-task Learning" (ICLR), the closed form for α; that it equals G⁺n /
    Σ(G⁺n): TorchJD, after Quinton and Rey, arXiv 2406.16232.

    Deviations: (1) The bound b; no reference has one. (2) U⁺ instead of G⁺: the same d for independent rows, without an
    absolute threshold (TorchJD's d is zero from norms of 10¹² on) and without a preference for long rows (for rows g,
    2g, 3g TorchJD's d is 7/3 g, here it is 18/11 g). (3) For rows g, −2g, TorchJD's d is −5g; equal projections are
    zero there, so here d = 0. (4) Parallel rows: the paper's formula, as in conflictfree, divides rounding errors by
    rounding errors.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("imtl_g").combine(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    tensor([0.7500, 0.7500])
    """

    def mix(self, step: Step) -> Tensor:
        return step.tasks * impartial_weights(*gramian_of_close_rows(step))


@np.errstate(all="ignore")
def impartial_weights(gramian: Tensor, rounding: float = gramian_rounding(torch.float64)) -> Tensor:
    """Return weights w, float64 `[tasks]`, with d = Σ_i w_i g_i."""
    xp, products = arrays(gramian)
    norms, present, coefficients, _, projection_sum = equal_cosines(xp, products, rounding)
    weights = coefficients * (norms.max() / norms)  # v times the largest norm, which cannot overflow
    if projection_sum == torch.inf:
        return torch.as_tensor(0.0 * weights)
    # ‖Û⁺1‖² divided by the share of 1 in the span of U; the share is 1 unless no d has equal cosines.
    bound = (coefficients @ present) * (present.sum() / projection_sum)
    total = weights @ present
    # For equal norms both are equal up to rounding; the sum is preferred there.
    return torch.as_tensor(weights / (total if total > bound * (1 - 1e-9) else bound))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=IMTLG,
        summary="the step whose projections on all tasks' gradients are equal",
        reference="Liu et al. 2021, Towards Impartial Multi-task Learning, ICLR",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

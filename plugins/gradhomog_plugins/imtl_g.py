"""IMTL-G: weights, summing to one, under which the step has equal projections on all tasks' gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, gramian_rounding, hookimpl
from gradhomog_plugins._unit_rows import equal_cosines


class IMTLG(Homogenizer):
    """The step Σ_i w_i g_i, Σ_i w_i = 1, whose projections on all rows' directions are equal.

    w = v / max(Σ_i v_i, b),  v_i = y_i / n_i,  y = U⁺1,  U the cosines of the rows,  n_i = ‖g_i‖
    d = Σ_i w_i g_i

    The bound b makes ‖d‖ at most max_i n_i times the mean cosine of d with the rows, which it is by itself where no
    weight is negative. Else Σ_i v_i may be near zero, and the paper's d has no bound; or negative, and the
    paper's d points against all tasks at once. With the bound d points along Û⁺1 always, as ConFIG's does.

    Of independent rows the cosines with d are equal and positive. Parallel rows of different norms leave w open; here
    w_i ∝ 1/n_i, the limit of rows that come to be parallel. Where rows are so dependent that no d has equal cosines,
    they are as equal as they can be in least squares, and d may conflict with some; of opposite rows nothing is left,
    d = 0. Zero rows get no weight. Float32 rows within about 0.1 degrees of each other count as parallel, float64
    rows within 1e-7 radians: closer, rounding decides. Differentiable in the rows as long as their rank does not
    change. State: none. Cost: one pseudo-inverse of an N×N matrix.

    Source: Liu et al. 2021, "Towards Impartial Multi-task Learning" (ICLR), the closed form for α; that it is
    G⁺n / Σ(G⁺n): TorchJD, after Quinton and Rey, arXiv 2406.16232.

    Deviations: (1) the bound; no reference has one; (2) U⁺ in place of G⁺: the same d for independent rows, and neither
    an absolute threshold (TorchJD's d is zero from norms of 10¹² on) nor a preference for long rows: for rows g, 2g, 3g
    TorchJD's d is 7/3 g, ours 18/11 g; (3) for rows g, −2g, TorchJD's d is −5g; equal projections are zero there, and
    so is d; (4) the paper's formula, as conflictfree has it, divides rounding by rounding where rows are parallel.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("imtl_g").combine(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    tensor([0.7500, 0.7500])
    """

    def mix(self, step: Step) -> Tensor:
        return step.tasks * impartial_weights(step.gramian(), gramian_rounding(step.dtype))


def impartial_weights(gramian: Tensor, rounding: float = gramian_rounding(torch.float64)) -> Tensor:
    """Weights w, float64 `[tasks]`, with d = Σ_i w_i g_i."""
    norms, present, coefficients, _, within = equal_cosines(gramian, rounding)
    weights = coefficients * ((norms * present).max() / norms)  # v, times the greatest norm: within range
    # ‖Û⁺1‖² over the share of 1 that lies in the span of U: that share is 1, unless no d has equal cosines.
    bound = coefficients.sum() * (present.sum() / within)
    total = weights.sum()
    # Of equal norms both are the same up to rounding, and for others near them the sum is what counts.
    total = torch.where(total > bound * (1 - 1e-9), total, bound)
    return weights / torch.where(within < torch.inf, total, torch.inf)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=IMTLG,
        summary="weights, summing to one, under which the step projects equally on all tasks' gradients",
        reference="Liu et al. 2021, Towards Impartial Multi-task Learning, ICLR",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

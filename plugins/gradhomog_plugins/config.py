"""ConFIG: the direction that has equal cosines with all tasks' gradients."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, gramian_rounding, hookimpl
from gradhomog_plugins._unit_rows import equal_cosines

Length = Literal["projection", "min", "max", "harmonic", "arithmetic", "geometric"]


class ConFIG(Homogenizer):
    """The step has equal cosines with all rows, and the length of all rows' projections on it.

    d = (Σ_i t_i ⟨u_i, d̂⟩) d̂,  d̂ = Û⁺1 / ‖Û⁺1‖,  Û the matrix of u_i = g_i/n_i,  n_i = ‖g_i‖,  t_i = n_i
    in the paper's scale; here 1/N of it

    Args:
        length: of the norms t_i: `"projection"`: themselves; or one value for all tasks, the
            least (`"min"`), the greatest (`"max"`), or the `"harmonic"`, `"arithmetic"` or `"geometric"` mean of them.

    On the Gramian alone: Û⁺1 = Ûᵀ U⁺ 1 with the cosines U = Û Ûᵀ, so that the weights are U⁺1/n up to a factor. One
    pseudo-inverse of an N×N matrix; none of the N×params matrix.

    Of independent rows the cosines are equal and positive: d conflicts with no row. Of rows so dependent that there is
    no such direction, d̂ comes nearest to one in least squares, and may conflict; of opposite rows nothing is left,
    d = 0. Zero rows count neither in d̂ nor in its length. Float32 rows within about 0.1 degrees of each other count
    as parallel, float64 rows within 1e-7 radians: closer, rounding decides. Differentiable in the rows as long as their
    rank does not change. State: none.

    Source: Liu, Chu, Thuerey 2024, "ConFIG", arXiv 2408.11104, equations 2 and 3; lengths as in its code, conflictfree.

    Deviations: (1) the Gramian, where conflictfree and TorchJD decompose the N×params matrix: the same d̂ for
    independent rows; (2) one tolerance for the rank, relative to the rows. Theirs is that of the dtype times the number
    of parameters: of 10⁶ float32 parameters what is below 12 % of the largest singular value is dropped, and float64
    rows are independent by their rounding (measured: with two of three rows at a cosine of 0.965 the cosines with
    TorchJD's d are 0.68, 0.79, 0.73; for rows a, b, a + b, rounded to float32 and passed in float64, it is 10⁷
    times too short); (3) for opposite rows both return rounding, brought to the length of the rows, and conflictfree's
    form for two tasks NaN; (4) "min" and the means leave zero rows out, where conflictfree's are zero or NaN; (5) equal
    preferences only.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("config").combine(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor([1.5000, 1.5000])
    """

    def __init__(self, length: Length = "projection") -> None:
        self.length = length

    def mix(self, step: Step) -> Tensor:
        return conflict_free_weights(step.gramian(), self.length, gramian_rounding(step.dtype))

    def paper_scale(self, step: Step) -> float:
        return step.tasks


def conflict_free_weights(
    gramian: Tensor, length: Length = "projection", rounding: float = gramian_rounding(torch.float64)
) -> Tensor:
    """Weights w, float64 `[tasks]`, with d = Σ_i w_i g_i in the paper's scale."""
    norms, present, coefficients, inner, within = equal_cosines(gramian, rounding)
    square = torch.where(within < torch.inf, coefficients.sum(), torch.inf)  # ‖Û⁺1‖²
    total = (norms if length == "projection" else _length(norms, present > 0, length) * present) * inner
    return coefficients * (total.sum() / square) / norms


def _length(norms: Tensor, present: Tensor, length: Length) -> Tensor:
    count = present.sum().clamp_min(1)
    if length == "min":
        least = torch.where(present, norms, torch.inf).amin()
        return torch.where(present.any(), least, 0.0)
    if length == "max":
        return (norms * present).amax()
    if length == "harmonic":
        return count / ((present / norms).sum() + ~present.any())
    if length == "arithmetic":
        return (norms * present).sum() / count
    return ((norms.log() * present).sum() / count).exp()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ConFIG,
        summary="the direction that has equal cosines with all tasks' gradients",
        reference="Liu, Chu, Thuerey 2024, arXiv 2408.11104",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

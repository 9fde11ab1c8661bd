"""ConFIG: the direction that has equal cosines with all tasks' gradients."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, gramian_rounding, hookimpl
from gradhomog_plugins._per_task import Preferences, relative_weights
from gradhomog_plugins._unit_rows import arrays, equal_cosines, gramian_of_close_rows

Length = Literal["projection", "min", "max", "harmonic", "arithmetic", "geometric"]


class ConFIG(Homogenizer):
    """Find the direction that has equal cosines with all rows; its length is the sum of their projections on it.

        u_i = g_i / n_i,  n_i = ‖g_i‖,  Û the matrix of the u_i,  d̂ = Û⁺w / ‖Û⁺w‖,  w = 1 by default
        d = 1/N (Σ_i t_i ⟨u_i, d̂⟩) d̂,  t_i = n_i by default;  paper's scale: without 1/N

    Args:
        length: the norms t_i: `"projection"`, n_i; or one value for all tasks, the smallest (`"min"`), the largest
            (`"max"`), or the `"harmonic"`, `"arithmetic"` or `"geometric"` mean of all n_i.
        weights: w_i ≥ 0, the ratio of the cosines ⟨u_i, d̂⟩: a list by position or a dict by name of a task, with the
            entry `"*"` for other names, as in `static`; by default all equal. They do not change the lengths t_i.

    Use it when rows conflict and their norms differ, and all tasks should improve equally relative to their norms. For
    independent rows all cosines are equal and positive, so d conflicts with no row. It is harmful where a row is mostly
    noise, because a short noisy row constrains the direction as much as a long one.

    Only the Gramian is used: Û⁺w = Ûᵀ U⁺ w with the cosines U = Û Ûᵀ, so the weights are U⁺w/n up to a factor. If rows
    are too dependent for equal cosines, d̂ is the least-squares solution and may conflict with a row. Opposite rows
    give d = 0. Zero rows affect neither d̂ nor its length. Float32 rows within about 0.08 √N degrees of each other count
    as parallel (bfloat16: 0.6 √N degrees, float64: 1.4e-7 √N radians): below that, the rounding of gradients could
    decide. Further apart, the direction of float32 rows is that of the same rows in float64 up to 1e-6 (measured for
    0.3 to 10 degrees), because the inner products of nearly dependent rows are computed in float64. Where rows are not
    in memory (`memory="low"`) they are not, and the error is about 1e-7 over the smallest eigenvalue of U: up to 1e-3
    for 1 degree.

    With their default options this and `dcgd` are the same method, for any number of tasks.

    Differentiable in the rows where their rank does not change.

    State: none. An absent task has no cosine: the ratio of the others does not change.

    Cost: one pseudo-inverse of an N×N matrix; none of the N×params matrix.

    Source: Liu, Chu, Thuerey 2024, "ConFIG", arXiv 2408.11104, equations 2 and 3; lengths as in its code, conflictfree.

    Deviations: (1) The Gramian; conflictfree and TorchJD decompose the N×params matrix. For independent rows d̂ is the
    same. (2) One tolerance for the rank, relative to the rows. Their tolerance is the machine epsilon of the dtype
    times the number of parameters: for 10⁶ float32 parameters, singular values below 12 % of the largest are dropped,
    and float64 rows that differ by rounding count as independent (measured: for three rows, two of which have a cosine
    of 0.965, the cosines with TorchJD's d are 0.68, 0.79, 0.73; for rows a, b, a + b, rounded to float32 and passed in
    float64, d is 10⁷ times too short). (3) For opposite rows both return rounding errors, scaled to the length of the
    rows, and conflictfree's form for two tasks returns NaN; here d = 0. (4) "min" and the means ignore zero rows; in
    conflictfree they are then zero or NaN.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("config").combine(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor([1.5000, 1.5000])
    """

    def __init__(self, length: Length = "projection", weights: Preferences = None) -> None:
        self.length, self.weights = length, weights

    def mix(self, step: Step) -> Tensor:
        gramian, rounding = gramian_of_close_rows(step)
        weights = relative_weights(self.weights, step)
        # Only their ratio counts: those of other names may be much larger.
        weights = weights / weights.max().clamp_min(torch.finfo(weights.dtype).tiny)
        return conflict_free_weights(gramian, self.length, rounding, weights)

    def paper_scale(self, step: Step) -> float:
        return step.tasks


@np.errstate(all="ignore")
def conflict_free_weights(
    gramian: Tensor,
    length: Length = "projection",
    rounding: float = gramian_rounding(torch.float64),
    cosines: Tensor | None = None,
) -> Tensor:
    """Return the coefficients of the rows, float64 `[tasks]`, whose sum is d in the paper's scale.

    `cosines`: w, their ratio, `[tasks]`; by default one.
    """
    xp, products, targets = arrays(gramian, torch.ones_like(gramian[0]) if cosines is None else cosines)
    norms, present, coefficients, inner_products, projection_sum = equal_cosines(xp, products, rounding, targets)
    if projection_sum == xp.inf:
        return torch.as_tensor(0.0 * coefficients)
    lengths = norms if length == "projection" else _length(xp, norms, present, length) * present
    square = coefficients @ targets  # ‖Û⁺w‖²
    return torch.as_tensor(coefficients * ((lengths @ inner_products) / square) / norms)


def _length(xp: Any, norms: Any, present: Any, length: Length) -> Any:
    """Return one length for all tasks, from the norms of the rows that are not zero."""
    total = present.sum()
    count = xp.where(total > 0, total, 1.0)
    if length == "min":
        least = xp.where(present > 0, norms, xp.inf).min()
        return xp.where(total > 0, least, 0.0)
    if length == "max":
        return (norms * present).max()
    if length == "harmonic":
        return count / ((present / norms).sum() + (total == 0))
    if length == "arithmetic":
        return (norms * present).sum() / count
    return xp.exp((xp.log(norms) * present).sum() / count)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ConFIG,
        summary="the direction that has equal cosines with all tasks' gradients",
        reference="Liu, Chu, Thuerey 2024, arXiv 2408.11104",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

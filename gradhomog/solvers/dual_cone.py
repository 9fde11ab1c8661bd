"""The projection onto the cone of directions that conflict with no row: the program of GEM, DualProj and UPGrad."""

import numpy as np
import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.solvers.pivoting import ROUNDING, on_support, pivot
from gradhomog.solvers.scaling import ScaledGramian, Solution, for_each_gramian, needs_graph, to_numpy


@for_each_gramian
def dual_cone_weights(gramian: Tensor, weights: Tensor, rounding: float | None = None) -> Solution:
    """Return weights of the projection of Jᵀu onto {d : Jd ≥ 0}: argmin of vᵀGv over v ≥ u.

    Args:
        gramian: G = JJᵀ, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Leading
            dimensions are a batch. `torch.func.vmap` and `torch.compile(fullgraph=True)` are not supported, because the
            search runs in NumPy on the CPU.
        weights: u, `[tasks]`, `[..., tasks]`, or several vectors for one Gramian as `[..., count, tasks]`.
        rounding: rounding of G relative to the rows' norms, for dependent rows; by default `gramian_rounding` of its
            dtype.

    Returns:
        v, float64, with the shape of u and the leading dimensions of G: d = Jᵀv. A zero row has v_i = u_i.

    Method: v = u + x, where x minimizes ½xᵀGx + (Gu)ᵀx over x ≥ 0, by block principal pivoting on the scaled Gramian,
    and by the active-set method where that does not end. For two rows the closed form is used.

    Twice differentiable w.r.t. G and u if the set of rows with x > 0 does not change: the last system is solved with
    the graph. A common factor that is a power of two does not change the result, to the last bit.

    Accuracy: ⟨g_i, d⟩ ≥ 0, with equality if x_i > 0, up to 2e-14 ‖g_i‖ Σ_j v_j ‖g_j‖ for float64 (measured as for
    `minimum_norm_weights`). The sum is the length of d before rows cancel; it is below 100 ‖Jᵀu‖ unless rows are nearly
    opposite. For 64 to 128 rows of rank N/8 to N conflicts are below 1e-12 of the longest row. For float32 rows
    conflicts are below 2e-4 ‖g_i‖ ‖g_j‖, for nearly opposite and dependent rows too: rows that are opposite up to 3e-4
    of their length are treated as opposite.

    Cost: 0.015 ms for two tasks, 0.05 to 0.15 ms for 16, 0.2 ms for 16 vectors u at once, 0.05 s for 64. For 256
    vectors and rows: 0.2 to 0.8 s, and 2 to 7 s where the rows are twice as many as their dimensions.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions, or `weights` has another number of entries.

    >>> dual_cone_weights(torch.tensor([[1.0, -1.0], [-1.0, 2.0]]), torch.tensor([0.5, 0.5])).weights
    tensor([0.5000, 0.5000], dtype=torch.float64)
    >>> dual_cone_weights(torch.tensor([[1.0, -1.0], [-1.0, 2.0]]), torch.eye(2)).weights
    tensor([[1.0000, 0.5000],
            [1.0000, 1.0000]], dtype=torch.float64)
    """
    program = ScaledGramian(gramian, rounding)
    weights = weights.double()
    if weights.shape[-1:] != gramian.shape[-1:]:
        raise OptionError(
            f"`weights` must contain one number for each of the {gramian.shape[-1]} rows in its last dimension; "
            f"got {tuple(weights.shape)}."
        )
    graph, given = needs_graph(gramian, weights), to_numpy(weights)
    if len(gramian) == 2 and not graph:
        vectors = [_pair(program.numbers.tolist(), vector) for vector in given.reshape(-1, 2).tolist()]
        projected = program.tensor(np.array(vectors).reshape(given.shape))
        return Solution(projected, torch.ones(projected.shape[:-1], dtype=torch.bool, device=gramian.device))
    factors = program.factors
    inverse = np.divide(1.0, factors, out=np.zeros_like(factors), where=factors > 0)
    lengths = given * inverse
    # Each vector is scaled separately, so that short ones are not lost to rounding beside long ones.
    size = np.abs(lengths).max(axis=-1, keepdims=True)
    size = np.where(size == 0, 1.0, size)
    found = pivot(program.unit, (lengths / -size) @ program.unit, program.rounding)
    if graph:
        unit = program.differentiable_unit()
        target = weights * program.tensor(inverse / -size) @ unit
        solution = on_support(unit, found.support, target.unsqueeze(-1), found.ridge).squeeze(-1)
        projected = weights + solution * program.tensor(size * factors)
    else:
        projected = program.tensor(given + found.solution * (size * factors))
    return Solution(projected, program.tensor(found.solved))


def _pair(gramian: list[list[float]], weights: list[float]) -> list[float]:
    """Return the weights for two rows in closed form.

    If the vector conflicts with a row, its component along the row is removed; if it then conflicts with the other row,
    the projection is zero. Takes a fifth of the time of pivoting, which dominates the step of two tasks apart from
    reads of the rows.
    """
    slopes = [row[0] * weights[0] + row[1] * weights[1] for row in gramian]
    for row, other in ((0, 1), (1, 0)):
        added = max(-slopes[row], 0.0) / (gramian[row][row] or 1.0)
        across = added * gramian[row][other]
        if slopes[other] + across >= -ROUNDING * (abs(slopes[other]) + abs(across)):
            weights[row] += added
            return weights
    return [0.0, 0.0]

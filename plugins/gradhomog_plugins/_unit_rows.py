"""Functions of a Gramian for NumPy and PyTorch: pseudo-inverse, cosines, and the direction with equal cosines."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradhomog import Step, gramian_rounding

# Eigenvalue of the cosines below which products in float32 are not accurate enough: their rounding, 1e-7, is divided
# by it.
NEARLY_DEPENDENT = 1e-2


def gramian_of_close_rows(step: Step) -> tuple[Tensor, float]:
    """Return the Gramian of a step, computed in float64 if rows are nearly dependent, and its rounding.

    The rounding is that of products in float32 in both cases, because gradients have the rounding of their backward
    pass: rows that are dependent up to it count as dependent.
    """
    gramian, rounding = step.gramian(), gramian_rounding(step.dtype)
    if step.dtype != torch.float64 and len(gramian) > 1 and bool(gramian.isfinite().all()):
        values = np.linalg.eigvalsh(unit_gramian(np, gramian.detach().numpy())[1])
        if ((values > rounding * len(values)) & (values < NEARLY_DEPENDENT)).any():
            return step.exact_gramian(), rounding
    return gramian, rounding


def arrays(gramian: Tensor, *constants: Tensor) -> tuple[Any, ...]:
    """Return `torch` and the tensors if the Gramian has a graph; otherwise `numpy` and the tensors as arrays.

    A small operation takes one microsecond in NumPy, and two to five in PyTorch. The caller uses functions with names
    that both modules share, and converts its result with `torch.as_tensor`.
    """
    if gramian.requires_grad and torch.is_grad_enabled():
        return torch, gramian, *constants
    return np, *map(Tensor.numpy, (gramian.detach(), *constants))


def pseudo_inverse(xp: Any, matrix: Any, tolerance: float) -> Any:
    """Return the pseudo-inverse of a positive semi-definite matrix; eigenvalues up to `tolerance` count as zero.

    Differentiable where the rank does not change, at equal eigenvalues too.
    """
    if xp is torch:
        return torch.linalg.pinv(matrix, atol=tolerance, rtol=0.0, hermitian=True)
    values, vectors = np.linalg.eigh(matrix)
    values[values <= tolerance] = np.inf
    return (vectors / values) @ vectors.T


def unit_gramian(xp: Any, gramian: Any) -> tuple[Any, Any]:
    """Return norms `[tasks]`, with the largest instead of zero, and cosines `[tasks, tasks]`, zero for a zero row."""
    squares = gramian.diagonal()
    numbers = squares.tolist()
    if min(numbers) <= 0:  # the derivative of the root is infinite at zero: a value in the unit of the rows instead
        squares = xp.where(squares > 0, squares, max(numbers) or 1.0)
    norms = xp.sqrt(squares)
    return norms, gramian / (norms[:, None] * norms)


def equal_cosines(xp: Any, gramian: Any, rounding: float, targets: Any = 1.0) -> tuple[Any, Any, Any, Any, Any]:
    """Return the shortest d = Σ_i y_i u_i with ⟨d, u_i⟩ = w_i for all i, u_i the rows divided by their norms.

    w: `targets`, `[tasks]`, or one. y = U⁺ w, U the cosines of the rows. If rows are too dependent for such a d, it is
    the least-squares solution. Zero rows are ignored: y_i = 0. Eigenvalues of U up to N · `rounding` count as zero.

    Differentiable in the Gramian where the rank of U does not change.

    Returns:
        The norms of the rows, the largest instead of zero, `[tasks]`; zero for a zero row, otherwise one, `[tasks]`; y
        `[tasks]`, with ‖d‖² = Σ_i w_i y_i; ⟨d, u_i⟩ `[tasks]`; Σ_i w_i ⟨d, u_i⟩, which is Σ_i ⟨d, u_i⟩², infinite where
        d consists of rounding errors only, for example for opposite rows.
    """
    norms, unit = unit_gramian(xp, gramian)
    present = xp.sign(gramian.diagonal())
    goals = targets * present
    weights = (pseudo_inverse(xp, unit, rounding * len(unit)) @ goals) * present  # zero rows: exactly zero, in any unit
    inner_products = unit @ weights
    total = inner_products @ goals
    return norms, present, weights, inner_products, total if total > rounding**2 * len(unit) else xp.inf

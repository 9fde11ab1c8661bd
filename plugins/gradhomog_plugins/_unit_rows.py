"""Cosines of the rows from their Gramian, and the direction with equal cosines to all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def unit_gramian(gramian: Tensor) -> tuple[Tensor, Tensor]:
    """Return norms `[tasks]`, with the largest instead of zero, and cosines `[tasks, tasks]`, zero for a zero row."""
    squares = gramian.diagonal()
    greatest = squares.detach().amax()
    # Not zero, where the derivative of the root is infinite, but a value in the unit of the rows.
    norms = torch.where(squares > 0, squares, torch.where(greatest > 0, greatest, 1.0)).sqrt()
    return norms, gramian / torch.outer(norms, norms)


class EqualCosines(NamedTuple):
    """The result of `equal_cosines`.

    Attributes:
        norms: norms of the rows, the largest instead of zero, `[tasks]`.
        present: zero for a zero row, otherwise one, `[tasks]`.
        weights: y `[tasks]`, with ‖d‖² = Σ_i y_i.
        inner_products: ⟨d, u_i⟩ `[tasks]`.
        projection_sum: Σ_i ⟨d, u_i⟩, which is Σ_i ⟨d, u_i⟩²; infinite where d consists of rounding errors only, for
            example for opposite rows.
    """

    norms: Tensor
    present: Tensor
    weights: Tensor
    inner_products: Tensor
    projection_sum: Tensor


def equal_cosines(gramian: Tensor, rounding: float) -> EqualCosines:
    """Return the shortest d = Σ_i y_i u_i with ⟨d, u_i⟩ = 1 for all i, u_i the rows divided by their norms.

    y = U⁺ 1, U the cosines of the rows. If rows are too dependent for such a d, it is the least-squares solution. Zero
    rows are ignored: y_i = 0. Eigenvalues of U up to N · `rounding` count as zero.

    Differentiable in the Gramian where the rank of U does not change.
    """
    norms, unit = unit_gramian(gramian)
    present = gramian.diagonal().sign()
    inverse = torch.linalg.pinv(unit, atol=rounding * len(unit), rtol=0.0, hermitian=True)
    weights = inverse.mv(present) * present  # zero rows: exactly zero, in any unit of length
    inner_products = unit.mv(weights)
    total = inner_products.dot(present)
    projection_sum = torch.where(total > rounding**2 * len(unit), total, torch.inf)
    return EqualCosines(norms, present, weights, inner_products, projection_sum)

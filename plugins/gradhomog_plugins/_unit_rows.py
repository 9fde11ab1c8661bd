"""Cosines of the rows from their Gramian, and the direction with equal cosines to all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def unit_gramian(gramian: Tensor) -> tuple[Tensor, Tensor]:
    """Norms `[tasks]`, the greatest in place of zero, and cosines of the rows `[tasks, tasks]`, zero for a zero row."""
    squares = gramian.diagonal()
    greatest = squares.detach().amax()
    # In place of zero before the root, whose derivative is then finite, and in the unit of the rows.
    norms = torch.where(squares > 0, squares, torch.where(greatest > 0, greatest, 1.0)).sqrt()
    return norms, gramian / torch.outer(norms, norms)


class EqualCosines(NamedTuple):
    """The result of `equal_cosines`.

    Attributes:
        norms: of the rows, the greatest in place of zero, `[tasks]`.
        present: one, or zero for a zero row, `[tasks]`.
        weights: y `[tasks]`, with ‖d‖² = Σ_i y_i.
        inner: ⟨d, u_i⟩ `[tasks]`.
        within: Σ_i ⟨d, u_i⟩, which is Σ_i ⟨d, u_i⟩²; infinite where d is no more than rounding: it is zero where the
            rows cancel, as opposite ones do.
    """

    norms: Tensor
    present: Tensor
    weights: Tensor
    inner: Tensor
    within: Tensor


def equal_cosines(gramian: Tensor, rounding: float) -> EqualCosines:
    """The shortest d = Σ_i y_i u_i with ⟨d, u_i⟩ = 1 for all i, u_i being the rows divided by their norms.

    y = U⁺ 1, U the cosines of the rows. Where rows are so dependent that there is no such d, ⟨d, u_i⟩ is as near to 1
    as it can be in least squares. Zero rows are left out: y_i = 0. Eigenvalues of U up to N · `rounding` count as zero.

    Differentiable in the Gramian as long as the rank of U does not change.
    """
    norms, unit = unit_gramian(gramian)
    present = gramian.diagonal().sign()
    inverse = torch.linalg.pinv(unit, atol=rounding * len(unit), rtol=0.0, hermitian=True)
    weights = inverse.mv(present) * present  # zero rows: exactly zero, in any unit of length
    inner = unit.mv(weights)
    total = inner.dot(present)
    within = torch.where(total > rounding**2 * len(unit), total, torch.inf)
    return EqualCosines(norms, present, weights, inner, within)

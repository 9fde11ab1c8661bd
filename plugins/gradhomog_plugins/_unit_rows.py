"""Rows divided by their norms, as the Gramian shows them, and the direction with equal cosines to all of them."""

from __future__ import annotations

import torch
from torch import Tensor

# Of N rows, an eigenvalue of their cosines up to N times this is no eigenvalue but rounding: cosines of float32 rows
# are off by 1e-7 (measured), so that of dependent rows they have eigenvalues of 1e-7 where there is zero. It makes rows
# parallel that are within 0.1 degrees.
ROUNDING = 1e-6


def unit_gramian(gramian: Tensor) -> tuple[Tensor, Tensor]:
    """Norms `[tasks]`, one in place of zero, and the cosines of the rows `[tasks, tasks]`, zero for a zero row."""
    squares = gramian.diagonal()
    norms = (squares + (squares <= 0)).sqrt()  # one before the root: neither it nor a quotient by it is infinite
    return norms, gramian / norms[:, None] / norms


def equal_cosines(gramian: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The shortest d = Σ_i y_i u_i with ⟨d, u_i⟩ = 1 for all i, u_i being the rows divided by their norms.

    y = U⁺ 1, U the cosines of the rows. Where rows are so dependent that there is no such d, ⟨d, u_i⟩ is as near to 1
    as it can be in least squares. Zero rows have no say: y_i = 0.

    Returns:
        norms `[tasks]`; y `[tasks]`; ⟨d, u_i⟩ `[tasks]`; and whether d is more than rounding: it is zero where the rows
        cancel, as opposite ones do.

    Differentiable in the Gramian as long as the rank of U does not change.
    """
    norms, unit = unit_gramian(gramian)
    target = (gramian.diagonal() > 0).to(gramian.dtype)
    inverse = torch.linalg.pinv(unit, atol=ROUNDING * len(unit), rtol=0.0, hermitian=True)
    coefficients = inverse @ target * target  # zero rows: exactly zero, whatever the unit of length
    inner = unit @ coefficients
    return norms, coefficients, inner, inner.square().sum() > ROUNDING**2 * len(unit)

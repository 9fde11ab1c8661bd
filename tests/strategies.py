"""Jacobians for hypothesis: given rank, spread of norms, conflict, zero and duplicate rows."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor


@st.composite
def jacobians(
    draw: st.DrawFn, tasks: tuple[int, int] = (1, 6), params: tuple[int, int] = (1, 12), degenerate: bool = True
) -> Tensor:
    """Float64 rows; norms spread over up to six orders of magnitude; some with zero, duplicate or opposite rows."""
    n, p = draw(st.integers(*tasks)), draw(st.integers(*params))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows = torch.randn(n, p, generator=generator, dtype=torch.float64)
    shared = draw(st.floats(-0.9, 2))
    rows = rows + shared * (rows.mean(0) if n > 1 else 0)
    spread = draw(st.floats(0, 6))
    rows = rows * 10 ** (spread * (torch.rand(n, 1, generator=generator, dtype=torch.float64) - 0.5))
    if degenerate and n > 1:
        kind = draw(st.sampled_from(["none", "none", "zero", "duplicate", "opposite"]))
        if kind == "zero":
            rows[draw(st.integers(0, n - 1))] = 0
        elif kind == "duplicate":
            rows[-1] = rows[0]
        elif kind == "opposite":
            rows[-1] = -rows[0]
    return rows

"""A Hypothesis strategy for tests of homogenizers: Jacobians."""

from __future__ import annotations

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

Range = int | tuple[int, int]
"""A number, or the smallest and the largest number that is drawn."""

# A byte indexes an entry: a multiple of 1/16 in (−6, 6], or zero for a quarter of the bytes. Bytes shrink towards 0, so
# whole numbers come first, the smallest before the others.
_SIXTEENTHS = sorted((k / 16 for k in range(-95, 97)), key=lambda x: (x.as_integer_ratio()[1], abs(x), x < 0))
_ENTRIES = torch.tensor(_SIXTEENTHS + [0.0] * 64, dtype=torch.float64)


@st.composite
def jacobians(
    draw: st.DrawFn, tasks: Range = (1, 6), params: Range = (1, 12), *, spread: float = 6, zero: bool = True,
    duplicate: bool = True, opposite: bool = True,
) -> Tensor:  # fmt: skip
    """Draw Jacobians, float64 `[tasks, params]`. They shrink towards few rows of small whole numbers.

    Args:
        tasks, params: number of rows and of columns.
        spread: ≥ 0. The ratio of the largest to the smallest nonzero norm is at most 10^spread.
        zero, duplicate, opposite: allow a row that is zero, equals another row, or is the negative of another row. Such
            rows are then drawn occasionally.

    >>> from hypothesis import given
    >>> @given(jacobians(tasks=3, params=(3, 8), zero=False))
    ... def test_every_row_has_a_length(jacobian):
    ...     assert (jacobian.norm(dim=1) > 0).all()
    >>> test_every_row_has_a_length()
    """
    kinds = ["free"] * 12 + ["zero"] * zero + ["duplicate"] * duplicate + ["opposite"] * opposite
    n, p = _draw_number(draw, tasks), _draw_number(draw, params)
    max_tasks, max_params = _maximum(tasks), _maximum(params)
    # Draw the maximal number of rows and entries and keep the last ones: lists shrink to zeros at the front.
    row = st.tuples(st.integers(0, int(10 * spread)), st.sampled_from(kinds), _vectors(max_params))
    tenths, row_kinds, vectors = zip(
        *draw(st.lists(row, min_size=max_tasks, max_size=max_tasks))[max_tasks - n :], strict=True
    )
    rows = torch.stack(vectors)[:, max_params - p :]
    rows = _limit_spread(rows * 10 ** (-torch.tensor(tenths, dtype=torch.float64) / 10)[:, None], spread)
    for index, kind in enumerate(row_kinds):
        if kind == "zero" or (kind != "free" and index > 0):  # the first row cannot copy an earlier one
            rows[index] = {"zero": 0.0, "duplicate": 1.0, "opposite": -1.0}[kind] * rows[0]
    assume(zero or bool(rows.any(dim=1).all()))
    assume(duplicate or not _has_equal_rows(rows, rows))
    assume(opposite or not _has_equal_rows(rows, -rows))
    return rows + 0.0  # no −0.0


def _draw_number(draw: st.DrawFn, bounds: Range) -> int:
    return bounds if isinstance(bounds, int) else draw(st.integers(*bounds))


def _maximum(bounds: Range) -> int:
    return bounds if isinstance(bounds, int) else bounds[1]


def _vectors(size: int) -> st.SearchStrategy[Tensor]:
    return st.binary(min_size=size, max_size=size).map(lambda drawn: _ENTRIES[list(drawn)])


def _limit_spread(rows: Tensor, spread: float) -> Tensor:
    """Scale short rows up, so that the ratio of any two nonzero norms is at most 10^spread."""
    norms = rows.norm(dim=1)
    least = norms.max() / 10**spread
    short = (norms > 0) & (norms < least)
    return rows * torch.where(short, least / torch.where(short, norms, 1.0), 1.0)[:, None]


def _has_equal_rows(rows: Tensor, others: Tensor) -> bool:
    """True if a nonzero row is equal to another row."""
    equal = (rows[:, None] == others[None]).all(dim=2) & rows.any(dim=1)[:, None]
    return bool(equal.fill_diagonal_(False).any())

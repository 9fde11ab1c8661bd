"""Hypothesis strategies for tests of homogenizers and learners: Jacobians, Gramians, task batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.learners.tasks import TaskBatch

Range = int | tuple[int, int]
"""A number, or the smallest and the largest number that is drawn."""

# A byte indexes an entry: a multiple of 1/16 in (−6, 6], or zero for a quarter of the bytes. Bytes shrink towards 0, so
# whole numbers come first, the smallest before the others.
_SIXTEENTHS = sorted((k / 16 for k in range(-95, 97)), key=lambda x: (x.as_integer_ratio()[1], abs(x), x < 0))
_ENTRIES = torch.tensor(_SIXTEENTHS + [0.0] * 64, dtype=torch.float64)


@st.composite
def jacobians(
    draw: st.DrawFn, tasks: Range = (1, 6), params: Range = (1, 12), *, rank: int | None = None, spread: float = 6,
    conflict: float | None = None, zero: bool = True, duplicate: bool = True, opposite: bool = True,
) -> Tensor:  # fmt: skip
    """Draw Jacobians, float64 `[tasks, params]`. They shrink towards few rows of small whole numbers.

    Args:
        tasks, params: number of rows and of columns.
        rank: upper bound of the rank, ≥ 1; by default unbounded.
        spread: ≥ 0. The ratio of the largest to the smallest nonzero norm is at most 10^spread.
        conflict: −cosine between any two rows, in [−1, 1/(tasks − 1)]; needs params ≥ tasks. By default arbitrary.
        zero, duplicate, opposite: allow a row that is zero, equals another row, or is the negative of another row. Such
            rows are then drawn occasionally.

    >>> from hypothesis import given
    >>> @given(jacobians(tasks=3, params=(3, 8), conflict=0.5, zero=False, duplicate=False, opposite=False))
    ... def test_every_two_tasks_conflict(jacobian):
    ...     inner = jacobian @ jacobian.T
    ...     assert (inner[~torch.eye(3, dtype=torch.bool)] < 0).all()
    >>> test_every_two_tasks_conflict()
    """
    kinds = ["free"] * 12 + ["zero"] * zero + ["duplicate"] * duplicate + ["opposite"] * opposite
    n, p = _draw_number(draw, tasks), _draw_number(draw, params)
    max_tasks, max_params = _maximum(tasks), _maximum(params)
    # Draw the maximal number of rows and entries and keep the last ones: lists shrink to zeros at the front.
    row = st.tuples(st.integers(0, int(10 * spread)), st.sampled_from(kinds), _vectors(rank or max_params))
    tenths, row_kinds, vectors = zip(*draw(_list(row, max_tasks))[max_tasks - n :], strict=True)
    rows = torch.stack(vectors)
    if rank is not None:
        rows = rows @ torch.stack(draw(_list(_vectors(max_params), rank)))
    rows = rows[:, max_params - p :]
    if conflict is not None:
        rows = _rows_with_conflict(rows, conflict)
    rows = _limit_spread(rows * 10 ** (-torch.tensor(tenths, dtype=torch.float64) / 10)[:, None], spread)
    for index, kind in enumerate(row_kinds):
        if kind == "zero" or (kind != "free" and index > 0):  # the first row cannot copy an earlier one
            rows[index] = {"zero": 0.0, "duplicate": 1.0, "opposite": -1.0}[kind] * rows[0]
    assume(zero or bool(rows.any(dim=1).all()))
    assume(duplicate or not _has_equal_rows(rows, rows))
    assume(opposite or not _has_equal_rows(rows, -rows))
    return rows + 0.0  # no −0.0


def gramians(
    tasks: Range = (1, 6), params: Range = (1, 12), *, rank: int | None = None, spread: float = 6,
    conflict: float | None = None, zero: bool = True, duplicate: bool = True, opposite: bool = True,
) -> st.SearchStrategy[Tensor]:  # fmt: skip
    """Draw Gramians J Jᵀ, float64 `[tasks, tasks]`, of Jacobians from `jacobians` with the same arguments."""
    rows = jacobians(
        tasks, params, rank=rank, spread=spread, conflict=conflict, zero=zero, duplicate=duplicate, opposite=opposite
    )
    return rows.map(lambda jacobian: jacobian @ jacobian.T)


@st.composite
def task_batches(
    draw: st.DrawFn, tasks: Range = (1, 4), *, ways: int = 3, shots: int = 1, queries: int = 2,
    input_shape: Sequence[int] = (6,), outputs: int | None = None, spread: float = 1, zero: bool = False,
    duplicate: bool = False, dtype: torch.dtype = torch.float64,
) -> TaskBatch:  # fmt: skip
    """Draw batches of few-shot tasks from domains `"domain 0"`, `"domain 1"`, …: one centre per class, plus noise.

    Args:
        tasks: number of tasks.
        ways, shots, queries: classes per task, support and query inputs per class. In regression, `shots` and `queries`
            are numbers of points.
        input_shape: shape of one input.
        outputs: None for classification, else the number of regression targets.
        spread: the scales of the tasks' inputs differ by a factor of at most 10^spread.
        zero: allow a task whose inputs are all zero.
        duplicate: allow a task that repeats the first.
    """
    n = _draw_number(draw, tasks)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    parts: dict[str, list[Tensor]] = {name: [] for name in ("support_x", "support_y", "query_x", "query_y")}
    for index in range(n):
        repeats_first = duplicate and index > 0 and draw(st.booleans())
        scale = 0.0 if zero and draw(st.integers(0, 3)) == 3 else 10 ** -draw(st.floats(0, spread))
        task = _task(generator, ways, shots, queries, tuple(input_shape), outputs, dtype)
        for name, value in task.items():
            scaled = value * scale if name.endswith("_x") else value
            parts[name].append(parts[name][0] if repeats_first else scaled)
    stacked: dict[str, Any] = {name: torch.stack(values) for name, values in parts.items()}
    return TaskBatch(**stacked, domains=tuple(f"domain {index}" for index in range(n)))


def _task(
    generator: torch.Generator, ways: int, shots: int, queries: int, shape: tuple[int, ...], outputs: int | None,
    dtype: torch.dtype,
) -> dict[str, Tensor]:  # fmt: skip
    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=dtype)

    parts, centres = {}, normal(ways, *shape)
    for part, count in (("support", shots), ("query", queries)):
        if outputs is None:
            classes = torch.arange(ways).repeat(count)
            parts[f"{part}_x"] = centres[classes] + 0.5 * normal(ways * count, *shape)
            parts[f"{part}_y"] = classes
        else:
            parts[f"{part}_x"], parts[f"{part}_y"] = normal(count, *shape), normal(count, outputs)
    return parts


def _draw_number(draw: st.DrawFn, bounds: Range) -> int:
    return bounds if isinstance(bounds, int) else draw(st.integers(*bounds))


def _maximum(bounds: Range) -> int:
    return bounds if isinstance(bounds, int) else bounds[1]


def _list(strategy: st.SearchStrategy[Any], size: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=size, max_size=size)


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


def _rows_with_conflict(drawn: Tensor, conflict: float) -> Tensor:
    n, p = drawn.shape
    if p < n or conflict < -1 or conflict * (n - 1) > 1:
        raise OptionError(
            f"`conflict` must be in [-1, 1/(tasks - 1)] with params ≥ tasks; got {conflict} for {n} tasks, {p} params."
        )
    cosines = (1 + conflict) * torch.eye(n, dtype=torch.float64) - conflict
    values, vectors = torch.linalg.eigh(cosines)
    basis = torch.linalg.qr(drawn.T)[0]  # orthonormal columns for any drawn rows
    rows: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.T @ basis.T
    return rows

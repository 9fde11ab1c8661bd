"""Hypothesis strategies for tests of homogenizers and learners: jacobians, Gramians, task batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.tasks import TaskBatch

Range = int | tuple[int, int]
"""A number, or the least and the greatest that is drawn."""

# A byte picks an entry: a sixteenth in (−6, 6], or for a quarter of them zero. Bytes shrink towards 0, so whole numbers
# come first, the smallest before all.
_SIXTEENTHS = sorted((k / 16 for k in range(-95, 97)), key=lambda x: (x.as_integer_ratio()[1], abs(x), x < 0))
_ENTRIES = torch.tensor(_SIXTEENTHS + [0.0] * 64, dtype=torch.float64)


@st.composite
def jacobians(
    draw: st.DrawFn,
    tasks: Range = (1, 6),
    params: Range = (1, 12),
    *,
    rank: int | None = None,
    spread: float = 6,
    conflict: float | None = None,
    zero: bool = True,
    duplicate: bool = True,
    opposite: bool = True,
) -> Tensor:
    """Rows, float64 `[tasks, params]`, that shrink towards few, small, whole numbers.

    Args:
        tasks, params: numbers of rows and columns.
        rank: the rows span at most so many dimensions, ≥ 1; by default any number.
        spread: norms that are not zero lie within so many orders of magnitude, ≥ 0.
        conflict: −cosine between any two rows, in [−1, 1/(tasks − 1)]; needs params ≥ tasks. By default rows are free.
        zero, duplicate, opposite: whether a row may be zero, may be equal to another, may be the negative of another;
            each such row then occurs now and then.

    >>> from hypothesis import given
    >>> @given(jacobians(tasks=3, params=(3, 8), conflict=0.5, zero=False, duplicate=False, opposite=False))
    ... def test_every_two_tasks_conflict(jacobian):
    ...     inner = jacobian @ jacobian.T
    ...     assert (inner[~torch.eye(3, dtype=torch.bool)] < 0).all()
    >>> test_every_two_tasks_conflict()
    """
    kinds = ["free"] * 12 + ["zero"] * zero + ["duplicate"] * duplicate + ["opposite"] * opposite
    n, p = _number(draw, tasks), _number(draw, params)
    most, longest = _largest(tasks), _largest(params)
    # As many as there can be, of which the last are taken: shrunk rows and their entries begin with zeros.
    row = st.tuples(st.integers(0, int(10 * spread)), st.sampled_from(kinds), _vectors(rank or longest))
    tenths, sorts, vectors = zip(*draw(_list(row, most))[most - n :], strict=True)
    rows = torch.stack(vectors)
    if rank is not None:
        rows = rows @ torch.stack(draw(_list(_vectors(longest), rank)))
    rows = rows[:, longest - p :]
    if conflict is not None:
        rows = _with_conflict(rows, conflict)
    rows = _within(rows * 10 ** (-torch.tensor(tenths, dtype=torch.float64) / 10)[:, None], spread)
    for index, kind in enumerate(sorts):
        if kind == "zero" or (kind != "free" and index > 0):  # the first has no other before it
            rows[index] = {"zero": 0.0, "duplicate": 1.0, "opposite": -1.0}[kind] * rows[0]
    assume(zero or bool(rows.any(dim=1).all()))
    assume(duplicate or not _pair(rows, rows))
    assume(opposite or not _pair(rows, -rows))
    return rows + 0.0  # no −0.0


def gramians(
    tasks: Range = (1, 6), params: Range = (1, 12), *, rank: int | None = None, spread: float = 6,
    conflict: float | None = None, zero: bool = True, duplicate: bool = True, opposite: bool = True,
) -> st.SearchStrategy[Tensor]:  # fmt: skip
    """Gramians J Jᵀ, float64 `[tasks, tasks]`, of the rows that `jacobians` draws with the same arguments."""
    rows = jacobians(
        tasks, params, rank=rank, spread=spread, conflict=conflict, zero=zero, duplicate=duplicate, opposite=opposite
    )
    return rows.map(lambda jacobian: jacobian @ jacobian.T)


@st.composite
def task_batches(
    draw: st.DrawFn,
    tasks: Range = (1, 4),
    *,
    ways: int = 3,
    shots: int = 1,
    queries: int = 2,
    input_shape: Sequence[int] = (6,),
    outputs: int | None = None,
    spread: float = 1,
    zero: bool = False,
    duplicate: bool = False,
    dtype: torch.dtype = torch.float64,
) -> TaskBatch:
    """Few-shot tasks of noise around one centre per class, from domains `"domain 0"`, `"domain 1"`, …

    Args:
        tasks: N.
        ways, shots, queries: classes, and support and query inputs of each; points where `outputs` is given.
        input_shape: of one input.
        outputs: None for classification, else the number of regression targets.
        spread: the sizes of the tasks' inputs lie within so many orders of magnitude.
        zero: whether all inputs of a task may be zero.
        duplicate: whether a task may repeat the first.
    """
    n = _number(draw, tasks)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    parts: dict[str, list[Tensor]] = {name: [] for name in ("support_x", "support_y", "query_x", "query_y")}
    for index in range(n):
        again = duplicate and index > 0 and draw(st.booleans())
        size = 0.0 if zero and draw(st.integers(0, 3)) == 3 else 10 ** -draw(st.floats(0, spread))
        task = _task(generator, ways, shots, queries, tuple(input_shape), outputs, dtype)
        for name, value in task.items():
            scaled = value * size if name.endswith("_x") else value
            parts[name].append(parts[name][0] if again else scaled)
    stacked = {name: torch.stack(values) for name, values in parts.items()}
    return TaskBatch(**stacked, domains=tuple(f"domain {index}" for index in range(n)))


def _task(
    generator: torch.Generator, ways: int, shots: int, queries: int, shape: tuple[int, ...], outputs: int | None,
    dtype: torch.dtype,
) -> dict[str, Tensor]:  # fmt: skip
    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=dtype)

    found, centres = {}, normal(ways, *shape)
    for part, count in (("support", shots), ("query", queries)):
        if outputs is None:
            classes = torch.arange(ways).repeat(count)
            found[f"{part}_x"] = centres[classes] + 0.5 * normal(ways * count, *shape)
            found[f"{part}_y"] = classes
        else:
            found[f"{part}_x"], found[f"{part}_y"] = normal(count, *shape), normal(count, outputs)
    return found


def _number(draw: st.DrawFn, given: Range) -> int:
    return given if isinstance(given, int) else draw(st.integers(*given))


def _largest(given: Range) -> int:
    return given if isinstance(given, int) else given[1]


def _list(strategy: st.SearchStrategy[Any], size: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=size, max_size=size)


def _vectors(size: int) -> st.SearchStrategy[Tensor]:
    return st.binary(min_size=size, max_size=size).map(lambda drawn: _ENTRIES[list(drawn)])


def _within(rows: Tensor, spread: float) -> Tensor:
    """Rows, lengthened where their norms would lie further apart than `spread` orders of magnitude."""
    norms = rows.norm(dim=1)
    least = norms.max() / 10**spread
    short = (norms > 0) & (norms < least)
    return rows * torch.where(short, least / torch.where(short, norms, 1.0), 1.0)[:, None]


def _pair(rows: Tensor, others: Tensor) -> bool:
    """True if a nonzero row is equal to another row."""
    equal = (rows[:, None] == others[None]).all(dim=2) & rows.any(dim=1)[:, None]
    return bool(equal.fill_diagonal_(False).any())


def _with_conflict(drawn: Tensor, conflict: float) -> Tensor:
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

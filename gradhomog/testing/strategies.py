"""Hypothesis strategies for tests of homogenizers and learners: jacobians, Gramians, task batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.tasks import TaskBatch

Range = int | tuple[int, int]
"""A number, or the least and the greatest that is drawn."""

# Entries of half precision: they shrink to small whole numbers, and none but zero is so small that its square is lost.
_ENTRIES = st.floats(-8, 8, width=16, allow_subnormal=False)


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
        rank: the rows span at most so many dimensions; by default any number.
        spread: their norms lie over up to so many orders of magnitude, ≥ 0.
        conflict: −cosine between any two rows, in [−1, 1/(tasks − 1)]; needs params ≥ tasks. By default rows are free.
        zero, duplicate, opposite: whether a row may be zero, or is made the first times 1 or −1 now and then; without,
            no row is zero, and two are parallel only by chance.

    >>> from hypothesis import given
    >>> @given(jacobians(tasks=3, params=(3, 8), conflict=0.5, zero=False, duplicate=False, opposite=False))
    ... def test_every_two_tasks_conflict(jacobian):
    ...     inner = jacobian @ jacobian.T
    ...     assert (inner[~torch.eye(3, dtype=torch.bool)] < 0).all()
    >>> test_every_two_tasks_conflict()
    """
    n, p = _number(draw, tasks), _number(draw, params)
    if conflict is not None:
        rows = _with_conflict(_entries(draw, n, p), conflict)
    elif rank is not None:
        rows = _entries(draw, n, rank) @ _entries(draw, rank, p)
    else:
        rows = _entries(draw, n, p)
    if not zero:
        assume(bool(rows.any(dim=1).all()))
    if spread > 0:
        exponents = draw(st.lists(st.floats(0, spread).map(lambda e: round(e, 1)), min_size=n, max_size=n))
        rows = rows * 10 ** -torch.tensor(exponents, dtype=torch.float64)[:, None]
    kinds = ["free", *(["zero"] * zero), *(["duplicate"] * duplicate), *(["opposite"] * opposite)]
    if len(kinds) > 1:
        for row in range(1, n):
            kind = draw(st.sampled_from(kinds)) if draw(st.integers(0, 3)) == 3 else "free"
            if kind != "free":
                rows[row] = {"zero": 0.0, "duplicate": 1.0, "opposite": -1.0}[kind] * rows[0]
    return rows


def gramians(
    tasks: Range = (1, 6), params: Range = (1, 12), *, rank: int | None = None, spread: float = 6,
    conflict: float | None = None, zero: bool = True, duplicate: bool = True, opposite: bool = True,
) -> st.SearchStrategy[Tensor]:  # fmt: skip
    """Gramians J Jᵀ, float64 `[tasks, tasks]`, of what `jacobians` draws with the same arguments."""
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
        spread: the tasks' inputs are of sizes that lie over up to so many orders of magnitude.
        zero: whether all inputs of a task may be zero.
        duplicate: whether a task may be the first once more.
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


def _entries(draw: st.DrawFn, rows: int, columns: int) -> Tensor:
    drawn = draw(arrays.arrays(np.float16, (rows, columns), elements=_ENTRIES))
    return torch.from_numpy(drawn).double() + 0.0  # no −0.0


def _with_conflict(drawn: Tensor, conflict: float) -> Tensor:
    n, p = drawn.shape
    if p < n or conflict < -1 or conflict * (n - 1) > 1:
        raise OptionError(
            f"`conflict` must be in [-1, 1/(tasks - 1)] with params ≥ tasks; got {conflict} for {n} tasks, {p} params."
        )
    cosines = (1 + conflict) * torch.eye(n, dtype=torch.float64) - conflict
    values, vectors = torch.linalg.eigh(cosines)
    basis = torch.linalg.qr(drawn.T)[0]  # orthonormal columns, whatever was drawn
    rows: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.T @ basis.T
    return rows

"""One row held for each task from step to step: found by its key, moved towards this step's row, and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import Rows

Row = dict[str, Tensor]
"""One task's row: tensors `[*shape]` by parameter name; of rows that are one matrix, by the name `""`."""

COLUMNS = 2**14  # of a piece, whose sums are taken in the rows' precision and added up in float64


def named(rows: Rows) -> Mapping[str, Tensor]:
    """The rows as a dict of tensors `[tasks, *shape]`."""
    return {"": rows} if isinstance(rows, Tensor) else rows


def by_task(rows: Rows) -> list[Row]:
    """The rows as one dict for each task: views."""
    given = named(rows)
    return [
        dict(zip(given, parts, strict=True))
        for parts in zip(*(value.unbind(0) for value in given.values()), strict=True)
    ]


def like(given: Rows, rows: Mapping[str, Tensor]) -> Rows:
    """Rows `[tasks, *shape]`, or expanded ones `[*shape]`, in the form, shapes and dtypes of those given."""
    found = {name: rows[name].to(value.dtype).expand_as(value) for name, value in named(given).items()}
    return found[""] if isinstance(given, Tensor) else found


def wide(value: Tensor) -> torch.dtype:
    """What is held of rows of this dtype: half precision would lose small steps."""
    return torch.promote_types(value.dtype, torch.float32)


def fitting(held: Mapping[str, Row], key: str, row: Row) -> Row | None:
    """What is held under a key, on the device of the row; None if that has not the row's names and shapes."""
    found = held.get(key)
    if found is None or found.keys() != row.keys():
        return None
    if any(found[name].shape != value.shape for name, value in row.items()):
        return None
    return {n: v if v.device == row[n].device else v.to(row[n].device) for n, v in found.items()}


def move(held: dict[str, Row], key: str, row: Row, share: float) -> None:
    """Move what is held under a key towards a row, in its own memory; begin with the row where nothing fits."""
    found = fitting(held, key, row)
    if found is None:
        held[key] = {name: value.to(wide(value), copy=True) for name, value in row.items()}
        return
    for name, value in found.items():
        value.lerp_(row[name].to(value.dtype), share)
    held[key] = found


def moved(held: Sequence[Row | None], given: Rows, shares: Tensor) -> dict[str, Tensor]:
    """What `move` would make of each, by shares `[tasks]`: (1 − s_i) held_i + s_i row_i, `[tasks, *shape]`.

    New memory, as large as the rows. Differentiable in rows and shares; where nothing is held, the row itself.
    """
    found = {}
    for name, value in named(given).items():
        weights = shares.to(value.device, wide(value))
        starts = [None if one is None else one[name] for one in held]
        tasks = list(zip(starts, value.to(wide(value)), weights, strict=True))
        if value.requires_grad or shares.requires_grad:
            # A copy of what is held, which `move` writes to before anybody asks for derivatives.
            parts = [row if start is None else torch.lerp(start.clone(), row, share) for start, row, share in tasks]
            found[name] = torch.stack(parts)
            continue
        found[name] = torch.empty(value.shape, dtype=wide(value), device=value.device)
        for target, (start, row, share) in zip(found[name], tasks, strict=True):
            _ = target.copy_(row) if start is None else torch.lerp(start, row, share, out=target)
    return found


def moved_sum(
    held: Sequence[Row | None], rows: Sequence[Row], shares: Sequence[float], weights: Sequence[float]
) -> Row:
    """Σ_i weights_i · (the i-th of `moved`), without forming them. Differentiable in the rows."""
    total = {name: torch.zeros(v.shape, dtype=wide(v), device=v.device) for name, v in rows[0].items()}
    for start, row, share, weight in zip(held, rows, shares, weights, strict=True):
        for name, value in row.items():
            total[name].add_(value, alpha=weight if start is None else weight * share)
            if start is not None:
                total[name].add_(start[name], alpha=weight * (1 - share))
    return total


def inner_products(rows: Sequence[Row], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """With d = Σ_j weights_j row_j: ⟨row_i, d⟩ and ‖row_i‖², float64 `[tasks]`, for rows of any size."""
    total = moved_sum([None] * len(rows), rows, weights, weights)
    largest = torch.stack([value.abs().max() for value in total.values() if value.numel()]).max()
    scale = torch.where(largest > 0, largest, 1.0)  # or products of small rows are lost
    inner, squares = [], []
    for name, value in total.items():
        flat, columns = (value / scale).reshape(-1), [row[name].reshape(-1) for row in rows]
        for start in range(0, len(flat), COLUMNS):
            piece = torch.stack([column[start : start + COLUMNS] for column in columns])
            inner.append(piece @ flat[start : start + COLUMNS])
            squares.append(torch.linalg.vector_norm(piece, dim=1))
    found = torch.stack(squares).double().square().sum(0)
    if _lost(found, sum(value.numel() for value in total.values())):
        found = torch.stack(
            [sum((_exact(v.reshape(1, -1)) for v in row.values()), found.new_zeros(1)) for row in rows]
        )[:, 0]
    return torch.stack(inner).double().sum(0) * scale.double(), found


def squared_norms(rows: Mapping[str, Tensor]) -> Tensor:
    """Row by row the sum of squares over all names, float64 `[tasks]`, for rows of any size. Differentiable."""
    blocks = [value.reshape(value.shape[0], -1) for value in rows.values()]
    if any(block.requires_grad for block in blocks):
        return torch.stack([block.double().square().sum(1) for block in blocks]).sum(0)
    pieces = [block[:, start : start + COLUMNS] for block in blocks for start in range(0, block.shape[1], COLUMNS)]
    found = torch.stack([torch.linalg.vector_norm(piece, dim=1) for piece in pieces]).double().square().sum(0)
    if _lost(found, sum(block.shape[1] for block in blocks)):
        return torch.stack([_exact(block) for block in blocks]).sum(0)
    return found


def _lost(squares: Tensor, size: int) -> bool:
    """Whether squares of numbers below 1e-17 have lost digits in float32, or those above 1e17 left it."""
    return not bool(((squares > 1e-30 * size) & (squares < 1e34)).all())


def _exact(block: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(block, dim=1, dtype=torch.float64)  # takes 20 times as long
    return norm.square()

"""Of the entries of each column those of one sign, the other dropped: GradDrop's arithmetic, and as fast as it gets."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog_plugins._lots import Lots

# Columns of a block at most: of fewer, calling PyTorch takes as long as what it computes. And how many numbers may be
# held beside the direction where it is smaller than that, and where it is larger: they have to stay in the cache.
COLUMNS, LEAST, MOST = 40_000, 2**16, 2**20


def keep(rows: Tensor, lots: Tensor, sharpness: float = 1.0) -> Tensor:
    """Which entries of `[tasks, params]` are kept: those that have not the sign that was drawn against."""
    drawn = _drawn(rows.sum(0), rows.abs().sum(0), lots, sharpness, len(rows))
    return torch.where(drawn.signbit(), rows <= 0, rows >= 0)


def drop(rows: Tensor, lots: Tensor, leak: Tensor | None = None, sharpness: float = 1.0, divisor: int = 1) -> Tensor:
    """Σ_i (ℓ_i + (1 − ℓ_i) M_i) g_i / divisor of rows `[tasks, params]`, 2U − 1 `[params]` and ℓ `[tasks]`: `[params]`.

    >>> drop(torch.tensor([[3.0, 1.0], [3.0, -4.0]]), lots=torch.tensor([0.9, 0.5]))
    tensor([ 6., -4.])
    """
    sizes = rows.abs()
    total, size = rows.sum(0), sizes.sum(0)
    drawn = _drawn(total.detach(), size.detach(), lots, sharpness, rows.shape[0])
    if leak is not None:
        total, size = total + leak @ rows, (1 - leak) @ sizes
    # Not the sign of `size`, of which copysign has NaN for a second derivative at zero; not `where`, on which a
    # processor guesses wrong at every second coordinate: ten times as long.
    return (total + size * torch.copysign(torch.ones_like(drawn), drawn)) / (2 * divisor)


def drop_into(direction: Tensor, rows: Tensor, lots: Lots, sharpness: float, divisor: int) -> None:
    """`drop` without graph and leak, block by block in the same memory: new memory takes longer than what is computed.

    A is summed without `share`, by which it is multiplied where it meets share · S: two passes fewer.
    """
    tasks, params = rows.shape
    columns, share = block_columns(params), 0.5 / divisor
    # Beside the sizes their sum.
    at_once = (tasks + 1) * columns <= min(max(params, LEAST), MOST)
    space, ones = rows.new_empty(tasks + 1 if at_once else 2, columns), rows.new_ones(tasks)
    for start in range(0, params, columns):
        part, total = rows[:, start : start + columns], direction[start : start + columns]
        room = space if len(total) == columns else space[:, : len(total)]
        drawn, size = room[0], room[-1]
        if at_once:
            torch.mv(torch.abs(part, out=room[:-1]).t(), ones, out=size)
        else:
            first, *others = part.unbind()
            torch.abs(first, out=size)  # `torch.linalg.vector_norm` over tasks takes 100 times as long
            for row in others:
                size.add_(torch.abs(row, out=drawn))
        lots.fill(drawn, room=total)
        torch.addmv(total, part.t(), ones, beta=0, alpha=share, out=total)
        _drawn(total, size, drawn, sharpness * lots.unit / share, tasks, out=drawn)
        total.add_(torch.copysign(size, drawn, out=drawn), alpha=share)


def _drawn(
    total: Tensor, size: Tensor, lots: Tensor, sharpness: float, tasks: int, *, out: Tensor | None = None
) -> Tensor:
    """Negative where the negative entries are kept: U ≥ f(P), P = ½ (1 + total/size), without the quotient.

    By as much as two float32 sums of so many tasks can differ, U is drawn together towards ½: where all tasks agree,
    |total| and size may be unequal by rounding, and yet nothing may be dropped.
    """
    return torch.addcmul(total, lots, size, value=-(1 - (tasks + 1) * 2**-23) / sharpness, out=out)


def block_columns(params: int) -> int:
    """Of blocks of equal lengths, each of whole numbers of 64 random bits, but for the last; 4 or more."""
    columns = -(-params // max(1, -(-params // COLUMNS)))
    return max(4, columns + -columns % 4)

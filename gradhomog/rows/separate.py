"""Rows as backward passes leave them: for each parameter one tensor per task, never put into one tensor as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.rows import products, which_finite
from gradhomog.rows.products import BLOCK
from gradhomog.rows.unformed import UnformedRows

# Columns that are brought together, or added up, at a time: 16 rows of float32 of this width stay in a core's cache.
WIDTH = 2 * BLOCK
CACHED = 8 * BLOCK  # the same where rows are multiplied where they lie: up to 8 of them
Product = Callable[[Sequence[Tensor], bool], Tensor]


class SeparateRows(UnformedRows):
    """Row i is `scale * parts[name][i]` over all names; None stands for zero: the loss does not depend on it.

    Args:
        parts: for each parameter as many gradients as tasks.
        like: for each parameter a tensor of its shape, dtype and device.
        scale: of all rows, > 0; put on what is computed from them, not on them.

    Nothing longer than `WIDTH` columns is copied, unless a homogenizer reads the rows themselves.
    """

    def __init__(
        self, parts: Mapping[str, Sequence[Tensor | None]], like: Mapping[str, Tensor], scale: float = 1.0
    ) -> None:
        self._parts, self._like, self._scale = parts, like, scale
        self.names = tuple(like)
        self.tasks = len(next(iter(parts.values())))
        self.device = next(iter(like.values())).device

    def formed(self) -> Mapping[str, Tensor]:
        found = {
            name: torch.stack([torch.zeros_like(like) if part is None else part for part in self._parts[name]])
            for name, like in self._like.items()
        }
        return found if self._scale == 1 else {name: self._scale * rows for name, rows in found.items()}

    def select(self, tasks: Sequence[int]) -> SeparateRows:
        return self._with({name: [parts[task] for task in tasks] for name, parts in self._parts.items()})

    def only(self, names: Sequence[str]) -> SeparateRows:
        """The rows of some parameters."""
        return self._with({name: self._parts[name] for name in names})

    def detach(self) -> SeparateRows:
        return self._with(
            {name: [None if part is None else part.detach() for part in parts] for name, parts in self._parts.items()}
        )

    def _with(self, parts: Mapping[str, Sequence[Tensor | None]]) -> SeparateRows:
        return SeparateRows(parts, {name: self._like[name] for name in parts}, self._scale)

    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        return self.names, self._scale**2 * self._products(_gramian, 2)

    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        return self.names, self._scale**2 * self._products(_squared_norms, 1)

    def finite_tasks(self) -> list[bool]:
        found = [(task, part) for parts in self._parts.values() for task, part in enumerate(parts) if part is not None]
        flags = which_finite([part for _, part in found])
        lost = {task for (task, _), fine in zip(found, flags, strict=True) if not fine}
        return [task not in lost for task in range(self.tasks)]

    def weighted_mean(self, weights: Tensor) -> dict[str, Tensor]:
        shares = weights.double() * (self._scale / self.tasks)
        return {name: _weighted_sum(self._parts[name], shares, like) for name, like in self._like.items()}

    def _products(self, product: Product, dims: int) -> Tensor:
        """A product of each parameter's rows, `[blocks, tasks]` or Gramians (`dims` 2): zero where a task has none."""
        present = [[task for task, part in enumerate(self._parts[name]) if part is not None] for name in self.names]
        flat = [
            [_flat(part, self._like[name]) for part in self._parts[name] if part is not None] for name in self.names
        ]
        found = torch.zeros(len(self.names), *[self.tasks] * dims, dtype=torch.float64, device=self.device)
        fast = [product(rows, False) if rows else found[0, :0] for rows in flat]
        squares = [part.diagonal() if dims == 2 and rows else part for part, rows in zip(fast, flat, strict=True)]
        sizes = [rows[0].numel() for rows in flat if rows]
        bad = iter(products.unsafe([part for part, rows in zip(squares, flat, strict=True) if rows], sizes))
        whole = []
        for index, rows in enumerate(flat):
            if not rows:
                whole.append(found[index])
                continue
            exact = next(bad) and any(products.gains(row[None]) for row in rows)
            part = product(rows, True) if exact else fast[index]
            whole.append(part if len(rows) == self.tasks else _placed(part, present[index], found[index]))
        return torch.stack(whole)


def _placed(part: Tensor, present: list[int], whole: Tensor) -> Tensor:
    """A product of some tasks' rows among zeros."""
    index = torch.tensor(present, device=whole.device)
    return whole.index_put((index[:, None], index) if whole.dim() == 2 else (index,), part)


def _gramian(rows: Sequence[Tensor], exact: bool) -> Tensor:
    """Inner products of rows that lie apart, float64 `[len(rows), len(rows)]`."""
    if len(rows) > 8 or not _by_dots(rows, exact):
        pieces = [products.gramian(piece, exact) for piece in _together(rows)]
        return pieces[0] if len(pieces) == 1 else torch.stack(pieces).sum(0)
    pairs = torch.tril_indices(len(rows), len(rows))
    pairs_list = list(zip(*pairs.tolist(), strict=True))
    sums = [
        torch.stack([torch.dot(piece[i], piece[j]) for i, j in pairs_list]).double() for piece in _pieces(rows, CACHED)
    ]
    lower = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    lower[pairs[0], pairs[1]] = sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)
    return lower + lower.tril(-1).T


def _squared_norms(rows: Sequence[Tensor], exact: bool) -> Tensor:
    """Sums of squares of rows that lie apart, float64 `[len(rows)]`."""
    if not _by_dots(rows, exact):
        pieces = [products.squared_norms(piece, exact) for piece in _together(rows)]
        return pieces[0] if len(pieces) == 1 else torch.stack(pieces).sum(0)
    sums = [torch.stack([torch.dot(row, row) for row in piece]).double() for piece in _pieces(rows, CACHED)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def _by_dots(rows: Sequence[Tensor], exact: bool) -> bool:
    """Whether one product after the other is faster than bringing pieces together (measured, up to 8 rows)."""
    some = rows[0]
    plain = not exact and not any(row.requires_grad for row in rows)
    return plain and some.device.type == "cpu" and some.dtype == torch.float32 and some.numel() > WIDTH


def _pieces(rows: Sequence[Tensor], width: int) -> Iterator[list[Tensor]]:
    for start in range(0, rows[0].numel(), width):
        yield [row[start : start + width] for row in rows]


def _together(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Matrices `[len(rows), at most WIDTH]` of rows that lie apart, one at a time; one of them even of empty rows."""
    width = WIDTH if rows[0].device.type == "cpu" else rows[0].numel()
    yield from (torch.stack(piece) for piece in _pieces(rows, max(width, 1)))
    if rows[0].numel() == 0:
        yield torch.stack(list(rows))


def _weighted_sum(parts: Sequence[Tensor | None], shares: Tensor, like: Tensor) -> Tensor:
    """`Σ_i shares_i · parts_i` in the dtype of `like`; float16 and bfloat16 are summed in float32."""
    present = [(task, part) for task, part in enumerate(parts) if part is not None]
    if not present:
        return torch.zeros_like(like, requires_grad=False)
    dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
    if shares.requires_grad or any(part.requires_grad for _, part in present):
        scaled = shares.to(like.device, dtype)
        return torch.stack([scaled[task] * part.to(dtype) for task, part in present]).sum(0).to(like.dtype)
    factors: list[float] = shares.tolist()
    total = torch.empty_like(like, dtype=dtype, requires_grad=False)  # laid out as `like` if that has no gaps
    whole, (first, *rest) = _flat(total, like), [(task, _flat(part, like)) for task, part in present]
    width = WIDTH if like.device.type == "cpu" else like.numel()
    for start in range(0, like.numel(), max(width, 1)):
        # In the cache: the sum is written to memory once, however many rows there are.
        piece = whole[start : start + width]
        torch.mul(first[1][start : start + width].to(dtype), factors[first[0]], out=piece)
        for task, row in rest:
            piece.add_(row[start : start + width].to(dtype), alpha=factors[task])
    return total.to(like.dtype)


def _flat(part: Tensor, like: Tensor) -> Tensor:
    """All numbers of a tensor in the order in which `like` has them in memory: a view, of what lies as `like` does."""
    if like.is_contiguous():
        return part.reshape(-1)
    order = sorted(range(like.dim()), key=lambda axis: (like.stride(axis), like.shape[axis]), reverse=True)
    return part.permute(order).reshape(-1) if like.permute(order).is_contiguous() else part.reshape(-1)

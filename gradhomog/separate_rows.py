"""Rows as backward passes leave them: for each parameter one tensor per task, never put into one tensor as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import products
from gradhomog.products import BLOCK, Product
from gradhomog.unformed import UnformedRows

# Columns that are brought together, or added up, at a time: 16 rows of float32 of this width stay in a core's cache.
WIDTH = 2 * BLOCK


class SeparateRows(UnformedRows):
    """Row i is `parts[name][i]` over all names; None stands for zero, as autograd answers where nothing depends.

    Args:
        parts: for each parameter as many gradients as tasks.
        like: for each parameter a tensor of its shape, dtype and device.

    Nothing longer than `WIDTH` columns is copied, unless a homogenizer reads the rows themselves.
    """

    def __init__(self, parts: Mapping[str, Sequence[Tensor | None]], like: Mapping[str, Tensor]) -> None:
        self._parts, self._like = parts, like
        self.names = tuple(like)
        self.tasks = len(next(iter(parts.values())))
        self.device = next(iter(like.values())).device

    def formed(self) -> Mapping[str, Tensor]:
        return {
            name: torch.stack([torch.zeros_like(like) if part is None else part for part in self._parts[name]])
            for name, like in self._like.items()
        }

    def select(self, tasks: Sequence[int]) -> SeparateRows:
        return SeparateRows({name: [parts[task] for task in tasks] for name, parts in self._parts.items()}, self._like)

    def only(self, names: Sequence[str]) -> SeparateRows:
        """The rows of some parameters."""
        return SeparateRows({name: self._parts[name] for name in names}, {name: self._like[name] for name in names})

    def detach(self) -> SeparateRows:
        return SeparateRows(
            {name: [None if part is None else part.detach() for part in parts] for name, parts in self._parts.items()},
            self._like,
        )

    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        return self.names, torch.stack([self._product(name, products.gramian) for name in self.names])

    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        return self.names, torch.stack([self._product(name, products.squared_norms) for name in self.names])

    def finite_tasks(self) -> Tensor:
        def finite(task: int) -> Tensor:
            found = [part for parts in self._parts.values() if (part := parts[task]) is not None]
            sums = [part.sum(dtype=torch.promote_types(part.dtype, torch.float32)) for part in found]
            return torch.isfinite(torch.stack(sums)).all() if sums else torch.tensor(True, device=self.device)

        return torch.stack([finite(task) for task in range(self.tasks)])

    def weighted_mean(self, weights: Tensor) -> dict[str, Tensor]:
        shares = weights.double() / self.tasks
        return {name: _weighted_sum(self._parts[name], shares, like) for name, like in self._like.items()}

    def _product(self, name: str, product: Product) -> Tensor:
        """A product of one parameter's rows: zero wherever a task has none."""
        present = [task for task, part in enumerate(self._parts[name]) if part is not None]
        pieces = _together([part.reshape(-1) for part in self._parts[name] if part is not None])
        found = [products.of_blocks([piece], product)[0] for piece in pieces]
        if not found:
            found, present = [products.squared_norms(self._like[name].new_zeros(self.tasks, 1))], []
            return torch.diag(found[0]) if product is products.gramian else found[0]
        total = found[0] if len(found) == 1 else torch.stack(found).sum(0)
        if len(present) == self.tasks:
            return total
        index = torch.tensor(present, device=self.device)
        whole = total.new_zeros((self.tasks,) * total.dim())
        return whole.index_put((index[:, None], index) if total.dim() == 2 else (index,), total)


def _together(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Pieces `[len(rows), at most WIDTH]` of rows that lie apart, one at a time."""
    if not rows:
        return
    size = rows[0].numel()
    width = WIDTH if rows[0].device.type == "cpu" else max(size, 1)
    for start in range(0, size, width):
        yield torch.stack([row[start : start + width] for row in rows])


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
    (first, part), *rest = present
    total = part.to(dtype) * factors[first] if not rest else torch.empty(like.shape, dtype=dtype, device=like.device)
    width = WIDTH if like.device.type == "cpu" else like.numel()
    flat = [part.reshape(-1) for _, part in present]
    for start in range(0, like.numel() if rest else 0, max(width, 1)):
        # In the cache: the sum is written to memory once, however many rows there are.
        piece = total.view(-1)[start : start + width]
        torch.mul(flat[0][start : start + width].to(dtype), factors[first], out=piece)
        for (task, _), row in zip(rest, flat[1:], strict=True):
            piece.add_(row[start : start + width].to(dtype), alpha=factors[task])
    return total.to(like.dtype)

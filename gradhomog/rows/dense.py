"""Rows in one tensor per parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.rows import arithmetic
from gradhomog.rows.arithmetic import Product, as_matrix, column_chunks, finite_rows, row_sums
from gradhomog.rows.device_copies import task_index, to_device
from gradhomog.rows.storage import Direction, StoredRows


@final
class DenseRows(StoredRows):
    """Rows stored in one tensor `[tasks, *shape]` per parameter; never concatenated, never copied as a whole."""

    def __init__(self, blocks: Mapping[str, Tensor]) -> None:
        self.blocks = self.like = dict(blocks)
        first = next(iter(self.blocks.values()))
        self.tasks, self._device, self.requires_grad = first.shape[0], first.device, False
        for block in self.blocks.values():
            if block.requires_grad:
                self.requires_grad = True

    def row(self, task: int) -> Direction:
        return {name: block[task] for name, block in self.blocks.items()}

    def materialize(self) -> dict[str, Tensor]:
        return dict(self.blocks)

    def row_like(self) -> Mapping[str, Tensor]:
        return self.row(0)

    def select(self, tasks: Sequence[int]) -> DenseRows:
        index = task_index(tasks, self._device)
        return DenseRows({name: block[index] for name, block in self.blocks.items()})

    def select_parameters(self, names: Sequence[str]) -> DenseRows:
        return DenseRows({name: self.blocks[name] for name in names})

    def detach(self) -> DenseRows:
        return DenseRows({name: block.detach() for name, block in self.blocks.items()})

    def finite_tasks(self) -> list[bool]:
        sums = [row_sums(as_matrix(block.detach())).double() for block in self.blocks.values()]
        return finite_rows(torch.stack(sums).sum(0), self.row)

    def products(self, product: Product, by_block: bool) -> Tensor:
        matrices = []
        for block in self.blocks.values():
            matrices.append(block if block.dim() == 2 else as_matrix(block))
        found = arithmetic.products(matrices, product)
        if len(found) == 1 and not by_block:
            return found[0]
        return torch.stack(found) if by_block else torch.stack(found).sum(0)

    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        """Return weighted sums of the rows; for weights `[sums, tasks]` with a first dimension of their number.

        Half precision is summed in float32.
        """
        shares, found = weights if divisor == 1 else weights / divisor, {}
        if self._device.type != "cpu":
            shares = to_device(shares, self._device)  # one copy for all blocks
        for name, block in self.blocks.items():
            matrix = block if block.dim() == 2 else as_matrix(block)
            if block.dtype.itemsize < 4:
                scaled = shares.to(block.device, torch.float32)
                parts = [(scaled @ part.float()).to(block.dtype) for part in column_chunks(matrix)]
                total = torch.cat(parts, dim=-1)
            else:
                total = shares.to(block.device, block.dtype) @ matrix  # block.mean(0) takes up to twice as long
            found[name] = total if block.dim() == 2 else total.reshape((*shares.shape[:-1], *block.shape[1:]))
        return found

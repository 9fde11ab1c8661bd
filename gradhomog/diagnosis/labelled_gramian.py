"""The Gramian of labelled rows of independent batches; means over pairs of rows by label, and without each batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LabelledGramian:
    """The Gramian of the rows of B independent batches, each with a label: its task, or the domain of its task.

    A batch may have several rows of a label, or none.

    Args:
        gramian: inner products of all rows, float64 `[rows, rows]`.
        batches: the batch of each row, int64 `[rows]`, 0 .. B − 1.
        labels: the label of each row, int64 `[rows]`, indices into `names`.
        names: the K labels.
    """

    gramian: Tensor
    batches: Tensor
    labels: Tensor
    names: tuple[str, ...]

    @classmethod
    def of_rows(cls, rows: Tensor, names: Sequence[str] | None = None) -> LabelledGramian:
        """Return the Gramian of rows `[batches, labels, params]`, one of every label in every batch."""
        batches, count, _ = rows.shape
        flat = rows.flatten(0, 1).double()
        return cls(
            flat @ flat.T,
            torch.arange(batches).repeat_interleave(count),
            torch.arange(count).repeat(batches),
            tuple(names or map(str, range(count))),
        )

    @property
    def count(self) -> int:
        """B, the number of batches."""
        return int(self.batches.max()) + 1

    @functools.cached_property
    def inner_products(self) -> tuple[Tensor, Tensor]:
        """Estimates of the inner products of expected rows `[K, K]`, and those without each batch `[B, K, K]`."""
        return self.different_batches(self.gramian)

    @functools.cached_property
    def mean_squares(self) -> tuple[Tensor, Tensor]:
        """The mean squared norm of rows by label `[K]`, and the means without each batch `[B, K]`."""
        return self.each_row(self.gramian.diagonal())

    @functools.cached_property
    def row_counts(self) -> Tensor:
        """The number of rows by batch and label, float64 `[B, K]`."""
        return self._by_batch(torch.ones(len(self.batches), dtype=torch.float64))

    def select(self, labels: Sequence[int]) -> LabelledGramian:
        """Return the rows of some labels, in this order; batches without such a row are left out.

        Raises:
            DataError: no row remains.
        """
        order = torch.full((len(self.names),), -1)
        order[torch.tensor(labels, dtype=torch.int64)] = torch.arange(len(labels))
        found = order[self.labels]
        kept = found >= 0
        _, batches = torch.unique(self.batches[kept], return_inverse=True)
        names = tuple(self.names[label] for label in labels)
        return LabelledGramian(self.gramian[kept][:, kept], batches, found[kept], names)

    def different_batches(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of a kernel over pairs of rows of different batches, by labels: a U-statistic.

            U_kl = mean of kernel(r, s) over rows r of label k and s of label l with batch(r) ≠ batch(s)

        Rows of different batches are independent, so the expectation of U_kl for the kernel ⟨r, s⟩ is
        ⟨E row_k, E row_l⟩, the squared norm of E row_k if k = l included: without noise.

        Args:
            kernel: symmetric, float64 `[rows, rows]`.

        Returns:
            The means `[K, K]`, and the means without each batch `[B, K, K]`; NaN if there is no such pair.

        Cost: O(rows²).
        """
        sums, counts = self._sums(kernel), self.row_counts
        inside = sums.diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # [B, K, K]
        across = sums.sum(2) - inside  # batch b with all others
        pairs = counts[:, :, None] * (counts.sum(0) - counts)[:, None, :]
        return _means(across.sum(0), across + across.mT, pairs.sum(0), pairs + pairs.mT)

    def same_batch(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of a kernel over pairs of different rows of the same batch, by labels; else as above."""
        counts = self.row_counts
        inside = self._sums(kernel).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        inside = inside - torch.diag_embed(self._by_batch(kernel.diagonal()))
        pairs = counts[:, :, None] * counts[:, None, :] - torch.diag_embed(counts)
        return _means(inside.sum(0), inside, pairs.sum(0), pairs)

    def each_row(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of values `[rows]` by label `[K]`, and the means without each batch `[B, K]`."""
        sums, counts = self._by_batch(values), self.row_counts
        return _means(sums.sum(0), sums, counts.sum(0), counts)

    def _groups(self) -> Tensor:
        return self.batches * len(self.names) + self.labels

    def _by_batch(self, values: Tensor) -> Tensor:
        """Sums of values `[rows]` by batch and label `[B, K]`."""
        shape = self.count, len(self.names)
        return values.new_zeros(shape[0] * shape[1]).index_add_(0, self._groups(), values).reshape(shape)

    def _sums(self, kernel: Tensor) -> Tensor:
        """Sums of a kernel by batch and label of both rows `[B, K, B, K]`."""
        size, groups = self.count * len(self.names), self._groups()
        left = kernel.new_zeros(size, len(kernel)).index_add_(0, groups, kernel)
        both = kernel.new_zeros(size, size).index_add_(1, groups, left)
        return both.reshape(self.count, len(self.names), self.count, len(self.names))


def _means(total: Tensor, parts: Tensor, pairs: Tensor, part_pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Total over pairs, and the same after each part is removed."""
    return total / pairs, (total - parts) / (pairs - part_pairs)

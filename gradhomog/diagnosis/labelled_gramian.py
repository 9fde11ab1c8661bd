"""The Gramian of labelled rows of independent batches, accumulated with bounded memory; means over pairs of rows."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.errors import DataError


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


COLUMNS = 2**18
"""Columns per stored row. Conv4 with 64 filters has 113 thousand parameters and ResNet-10 has 4.9 million: rows of the
first are stored, those of the second are sketched."""

_CHUNK = 2**15


class RowStore:
    """Store the rows of batches in float32 on the CPU, and multiply all of them at the end.

    Longer rows are stored as a count sketch S g with S `[columns, params]`: every parameter is added to one random
    column with a random sign. All rows have the same S, so that

        E⟨S g, S h⟩ = ⟨g, h⟩,    Var⟨S g, S h⟩ ≤ (‖g‖² ‖h‖² + ⟨g, h⟩²) / columns

    With the default, the error of a cosine of two rows has a standard deviation of at most 0.003, and the same holds
    for cosines of means of rows. Intervals over batches do not include this error. The sign of a product of two rows is
    biased: if their cosine is smaller than the error, the rate of negative products is nearer to 1/2 than without S.

    Args:
        names: the tasks or domains in the order of the result, or None for their order of appearance.
        columns: the largest number of numbers per stored row, >= 1.
        seed: seed of S.

    Memory: 4 bytes · rows · min(params, columns); with the default at most 1 MiB per row.

    Source: Charikar et al. 2002, "Finding frequent items in data streams"; for inner products Weinberger et al. 2009,
    "Feature hashing for large scale multitask learning", lemma 2.

    >>> store = RowStore(["a", "b"])
    >>> for scale in (1.0, 2.0):  # two batches
    ...     store.add(scale * torch.tensor([[3.0, 4.0], [0.0, 1.0]]), ["a", "b"])
    >>> store.result().gramian[0]
    tensor([25.,  4., 50.,  8.], dtype=torch.float64)
    """

    def __init__(self, names: Sequence[str] | None = None, columns: int = COLUMNS, seed: int = 0) -> None:
        self.names, self._closed = list(names or ()), names is not None
        self.columns, self.seed = columns, seed
        self.batches = 0
        self.params = 0
        self._shapes = dict[str, tuple[int, ...]]()
        self._rows = list[Tensor]()
        self._batches = list[int]()
        self._labels = list[int]()

    def add(self, rows: Tensor | Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Add the rows of one batch: `[rows, params]`, or by parameter name `[rows, *shape]`; copied.

        Args:
            names: the name of each row, one for each: its task, or the domain of its task.

        Raises:
            DataError: a name is not one of the constructor's, the parameters differ, or a row contains NaN or infinity.
                The rows are not added.
        """
        blocks = {"": rows} if isinstance(rows, Tensor) else dict(rows)
        shapes = {name: tuple(block.shape[1:]) for name, block in blocks.items()}
        self._check_shapes(shapes)
        # In the order of the first batch: the parameters of later ones may be in another order.
        flat = torch.cat(
            [blocks[name].detach().reshape(len(blocks[name]), -1).float().cpu() for name in self._shapes or shapes], 1
        )
        if self._closed and (unknown := sorted(set(names) - set(self.names))):
            raise DataError(f"`names` must be among {', '.join(self.names)}; got {', '.join(unknown)}.")
        if bad := [name for name, row in zip(names, flat, strict=True) if not row.isfinite().all()]:
            raise DataError(
                f"rows must be finite; batch {self.batches} has NaN or infinity in the row of {', '.join(bad)}. "
                "Lower the learning rates, or measure before the training diverges."
            )
        self._shapes, self.params = self._shapes or shapes, flat.shape[1]
        self._rows.append(self._sketch(flat) if self.params > self.columns else flat.clone())
        self.names += [name for name in dict.fromkeys(names) if name not in self.names]
        self._batches += [self.batches] * len(flat)
        self._labels += [self.names.index(name) for name in names]
        self.batches += 1

    def result(self) -> LabelledGramian:
        """Return the Gramian of all rows, of which there is at least one, multiplied in float64."""
        rows = len(self._batches)
        total = torch.zeros(rows, rows, dtype=torch.float64)
        # In chunks of columns: all rows in float64 would take twice the memory of the stored rows.
        for start in range(0, self._rows[0].shape[1], _CHUNK):
            part = torch.cat([stored[:, start : start + _CHUNK] for stored in self._rows]).double()
            total += part @ part.T
        return LabelledGramian(total, torch.tensor(self._batches), torch.tensor(self._labels), tuple(self.names))

    def _check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise if the names or the shapes of parameters differ from those of the first batch."""
        first = self._shapes or shapes
        for name in {**first, **shapes}:
            if first.get(name) != shapes.get(name):
                what = f"`{name}`" if name else "the rows"
                raise DataError(
                    f"all rows must have the same parameters; {what} must have the shape {first.get(name, 'absent')} "
                    f"as in the first batch; got {shapes.get(name, 'absent')} in batch {self.batches}."
                )

    def _sketch(self, flat: Tensor) -> Tensor:
        columns, signs = _hashes(flat.shape[1], self.columns, self.seed)
        return flat.new_zeros(len(flat), self.columns).index_add_(1, columns, flat * signs)


@functools.lru_cache(maxsize=1)  # 12 bytes per parameter; all rows have the same parameters
def _hashes(params: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the random column and the random sign of each parameter."""
    generator = torch.Generator().manual_seed(seed)
    signs = 2.0 * torch.randint(2, (params,), generator=generator) - 1
    return torch.randint(columns, (params,), generator=generator), signs

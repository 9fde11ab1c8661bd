"""Accumulate the Gramian of the rows of many batches, with bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.errors import DataError

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
            names: the name of each row: its task, or the domain of its task.

        Raises:
            DataError: a name is not one of the constructor's, the number of rows or the parameters differ, or a row
                contains NaN or infinity. The rows are not added.
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
        if len(names) != len(flat):
            raise DataError(f"`names` must contain one name for each of the {len(flat)} rows; got {len(names)}.")
        if bad := [name for name, row in zip(names, flat, strict=True) if not row.isfinite().all()]:
            raise DataError(
                f"rows must be finite; batch {self.batches} has NaN or infinity in the row of {', '.join(bad)}. "
                "Lower the learning rates, or measure before the training diverges."
            )
        self._shapes, self.params = self._shapes or shapes, flat.shape[1]
        self._rows.append(self._sketch(flat) if self.is_sketched else flat.clone())
        self.names += [name for name in dict.fromkeys(names) if name not in self.names]
        self._batches += [self.batches] * len(flat)
        self._labels += [self.names.index(name) for name in names]
        self.batches += 1

    @property
    def is_sketched(self) -> bool:
        """True if rows are stored as sketches, False if they are stored exactly."""
        return self.params > self.columns

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

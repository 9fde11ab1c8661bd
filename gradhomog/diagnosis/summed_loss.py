"""Detect rows that are not the gradients of separate losses: multiples of one gradient, or sums of the others."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.conflict import cosines
from gradhomog.diagnosis.labelled_gramian import LabelledGramian

TOLERANCE = 1e-5
"""Largest 1 − |cosine| of parallel rows. The rounding of bfloat16 gives about 1e-6; rows of different losses with an
angle of 0.25° or less in every batch are not distinguished from parallel ones."""

DEPENDENT = TOLERANCE**2
"""Bound of the smallest eigenvalue of the normalized Gramian of dependent rows. The rounding of float32 gives about
1e-14."""


def rows_are_parallel(gramian: LabelledGramian) -> bool:
    """True if the rows of every batch are multiples of one gradient, and there is a batch with two rows.

    Examples are gradients of the summed loss that were passed for each task, and copies of `.grad` after several
    `backward()` calls of one loss. Zero rows are ignored.
    """
    products, within = gramian.gramian, gramian.batches[:, None] == gramian.batches
    pairs = torch.triu(within, 1) & _nonzero(products)[:, None] & _nonzero(products)
    return bool(pairs.any()) and bool((cosines(products).abs()[pairs] >= 1 - TOLERANCE).all())


def summed_labels(gramian: LabelledGramian) -> list[str]:
    """Return the labels whose row is a positive multiple of the sum of the others in every batch.

    The total loss, passed as if it were a task, has such a row. Only for batches with one row per label and three or
    more labels.
    """
    labels, count = len(gramian.names), gramian.count
    places = gramian.batches * labels + gramian.labels
    order = torch.argsort(places)
    if labels < 3 or not torch.equal(places[order], torch.arange(labels * count)):
        return []
    blocks = gramian.gramian[order][:, order].reshape(count, labels, count, labels)
    batches = blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # [batches, labels, labels]
    squares = batches.diagonal(dim1=1, dim2=2)
    others = batches.sum(2) - squares  # ⟨row_i, Σ_{j≠i} row_j⟩
    squared_sums = batches.sum((1, 2))[:, None] - 2 * others - squares  # ‖Σ_{j≠i} row_j‖²
    norms = (squares * squared_sums.clamp_min(0)).sqrt()
    found = ((others >= (1 - TOLERANCE) * norms) & (norms > 0)).all(0)
    return [name for name, is_sum in zip(gramian.names, found.tolist(), strict=True) if is_sum]


def rows_are_dependent(gramian: LabelledGramian, dimension: int) -> bool:
    """True if the nonzero rows of every batch are linearly dependent, and not more than the dimension of a row.

    An example is a weighted total loss, passed as if it were a task. Sums of rows with less precision than float32 are
    not found.
    """
    for batch in range(gramian.count):
        index = torch.nonzero((gramian.batches == batch) & _nonzero(gramian.gramian)).flatten()
        if not 2 <= len(index) <= dimension:
            return False
        if float(torch.linalg.eigvalsh(cosines(gramian.gramian[index][:, index]))[0]) > DEPENDENT:
            return False
    return True


def _nonzero(products: Tensor) -> Tensor:
    return products.diagonal() > 0

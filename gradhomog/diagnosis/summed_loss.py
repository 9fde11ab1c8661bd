"""Detect rows that are not gradients of separate losses: multiples of one gradient, sums of others, running sums."""

import torch
from torch import Tensor

from gradhomog.conflict import cosines
from gradhomog.diagnosis.estimates import estimate
from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.diagnosis.row_statistics import squares

TOLERANCE = 1e-5
"""Largest 1 − |cosine| of parallel rows. The rounding of bfloat16 gives about 1e-6; rows of different losses with an
angle of 0.25° or less in every batch are not distinguished from parallel ones."""

DEPENDENT = TOLERANCE**2
"""Bound of the smallest eigenvalue of the normalized Gramian of dependent rows. The rounding of float32 gives about
1e-14."""


TREND_BATCHES = 8
"""Fewest batches for a trend of norms; independent ones have a rank correlation above `TREND` with p < 0.002."""

TREND = 0.9

RUNNING_SUM = 0.1
"""Largest deviation from 1 of the regression of one task's noise on that of the task before it, in running sums."""


def rows_are_accumulated(gramian: LabelledGramian) -> bool:
    """True if rows are running sums of gradients, over all batches or over the tasks of each batch.

    Over batches: the norms of all labels grow from batch to batch, to twice the first ones or more. Over the tasks of a
    batch: the noise of row k + 1 contains that of row k, Cov(g_k, g_k+1) = Cov(g_k), for all k. Without noise the
    latter cannot be distinguished from other gradients.
    """
    return _norms_grow(gramian) or _noise_is_contained(gramian)


def _norms_grow(gramian: LabelledGramian) -> bool:
    if gramian.count < TREND_BATCHES:
        return False
    norms = gramian.gramian.diagonal().clamp_min(0).sqrt()
    for label in range(len(gramian.names)):
        of_label = gramian.labels == label
        ordered = norms[of_label][torch.argsort(gramian.batches[of_label], stable=True)]
        ranks = torch.argsort(torch.argsort(ordered)).double()
        part = len(ordered) // 4
        if part < 2 or float(torch.corrcoef(torch.stack([ranks, torch.arange(len(ranks)).double()]))[0, 1]) < TREND:
            return False
        if float(ordered[-part:].mean()) < 2 * float(ordered[:part].mean()):
            return False
    return True


def _noise_is_contained(gramian: LabelledGramian) -> bool:
    if len(gramian.names) < 2:
        return False

    def regressions(same_batch: Tensor, inner: Tensor, energy: Tensor) -> Tensor:
        """Of the noise of each row on that of the row before, and the reverse: `[..., 2, tasks - 1]`."""
        neighbours, traces = (same_batch - inner).diagonal(offset=1, dim1=-2, dim2=-1), energy - squares(inner)
        return torch.stack([neighbours / traces[..., :-1], neighbours / traces[..., 1:]], dim=-2)

    same = gramian.same_batch(gramian.gramian)
    found = estimate(regressions, same, gramian.inner_products, gramian.mean_squares)
    contained = ((found.value[0] - 1).abs() < RUNNING_SUM) & (found.half_width[0] < RUNNING_SUM)
    return bool((contained & (found.high[1] < 1 - RUNNING_SUM)).all())


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

"""Send the rows of each rank to the ranks that store their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.communicator import GroupCommunicator, Pending
from gradhomog.ranks.split_rows import SplitRows, exchanged_rows
from gradhomog.rows import Direction, Jacobian

Row = Callable[[int], Direction]
"""Returns one row of this rank, by parameter name."""

PartialRow = tuple[Mapping[str, Tensor | None], float]
"""The gradient of one task on this rank, None for zero, and its weight in the sum over the ranks."""


def collect_tasks(row: Row, counts: Sequence[int], split: ColumnSplit, communicator: GroupCommunicator) -> Jacobian:
    """Return the rows of all ranks, in the order of the ranks.

    Args:
        row: called with 0, …, n − 1 for the n tasks of this rank.
        counts: the number of tasks of each rank.

    Cost: each rank sends n rows less its own part; memory: a copy of its rows, and N rows over K.
    """
    rows = [row(task) for task in range(counts[communicator.rank])]
    columns = {}
    for part in split.ranges:
        flat = torch.stack([split.flatten(part, one) for one in rows])
        sent = flat.view(len(rows), communicator.size, part.width).transpose(0, 1).reshape(-1)
        received = communicator.all_to_all(sent, [count * part.width for count in counts])
        columns[part.names[0]] = received.view(sum(counts), part.width)
    return Jacobian(exchanged_rows(columns, split, communicator))


def sum_tensors(
    tensors: Mapping[str, Tensor | None], like: Mapping[str, Tensor], communicator: GroupCommunicator
) -> Direction:
    """Return the sums of tensors over the ranks, by name; tensors of one dtype are sent together.

    Args:
        tensors: None for zero.
        like: for each name a tensor of the same shape, dtype and device.
    """
    if not like:
        return {}
    whole = ColumnSplit(like, 1, 0)
    return whole.unflatten({p.names[0]: communicator.sum(whole.flatten(p, tensors)) for p in whole.ranges})


def average(
    tensors: Mapping[str, Tensor | None], like: Mapping[str, Tensor], communicator: GroupCommunicator
) -> Direction:
    """Return the means of tensors over the ranks, by name; arguments as in `sum_tensors`."""
    return {name: total / communicator.size for name, total in sum_tensors(tensors, like, communicator).items()}


def sum_batches(rows: Iterable[PartialRow | None], split: ColumnSplit, communicator: GroupCommunicator) -> SplitRows:
    """Return the rows Σ_r w_ri J_ri, from the row and the weight of each task on this rank; None for a zero row.

    Each row is sent while the next one is computed, if `rows` computes it on demand.

    Cost: each rank sends N rows less its own parts; memory: two rows, and N rows over K.
    """
    columns: list[list[Tensor]] = [[] for _ in split.ranges]
    sending: list[Pending] = []
    for entry in rows:
        row, weight = entry or ({}, 1.0)
        started = [communicator.start_reduce_scatter(split.flatten(part, row).mul_(weight)) for part in split.ranges]
        _receive(sending, columns)
        sending = started
    _receive(sending, columns)
    stacked = {part.names[0]: torch.stack(parts) for part, parts in zip(split.ranges, columns, strict=True)}
    return exchanged_rows(stacked, split, communicator)


def _receive(sending: Sequence[Pending], columns: Sequence[list[Tensor]]) -> None:
    for parts, pending in zip(columns, sending, strict=False):
        parts.append(pending.wait())

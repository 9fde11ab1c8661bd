"""Gather the features of a batch over ranks, for homogenizers that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import GroupCommunicator


class GatheredFeatures(NamedTuple):
    """Features, gradients w.r.t. them, and targets of the whole batch, as in `Step`."""

    features: Sequence[Tensor] = ()
    feature_grads: Sequence[Tensor] = ()
    targets: Tensor | None = None


def gather_features(
    derivatives: Derivatives, targets: Tensor | None, totals: Mapping[int, float],
    communicator: GroupCommunicator,
) -> GatheredFeatures:  # fmt: skip
    """Return the features of the whole batch; the gradients are those of the mean losses over the ranks.

    Args:
        totals: for each task that is present on at least one rank, by slot, the number of examples on all ranks.

    Raises:
        OptionError: on all ranks, a task is absent on some of them.

    Cost: each rank sends its features once, or once per task if they were transformed, and the gradients w.r.t. them.
    """
    absent = communicator.all_gather_numbers([float(derivatives.graph.tasks.slots != tuple(totals))])
    if absent.any():
        raise OptionError(
            "a homogenizer reads features, so every rank must have a loss for every task; rank "
            f"{int(absent.argmax())} does not. Give every rank examples of all tasks, or use another homogenizer."
        )
    features, feature_grads = derivatives.at_stages()
    grads = [
        torch.stack([row / total for row, total in zip(stage, totals.values(), strict=True)]) for stage in feature_grads
    ]
    return GatheredFeatures(
        [gather_batch("features", stage, communicator)[0] for stage in features],
        [gather_batch("features", stage, communicator)[0] for stage in grads],
        None if targets is None else gather_batch("targets", targets, communicator)[0],
    )


def gather_batch(name: str, value: Tensor, communicator: GroupCommunicator) -> tuple[Tensor, slice]:
    """Concatenate tensors `[tasks, batch, *shape]` of all ranks, whose batches may differ in size.

    Returns the whole tensor, and the position of this rank's examples in it.

    Raises:
        OptionError: on all ranks, the tensors have no batch, or other dimensions differ.
    """
    value = value.detach()  # of the graph, as ranks exchange numbers
    shape = (value.dim(), *value.shape[2:], *[0] * 8)[:8]  # equally many numbers on every rank
    shapes = [tuple(map(int, numbers)) for numbers in communicator.all_gather_numbers(shape).tolist()]
    if value.dim() < 2 or len(set(shapes)) > 1:
        raise OptionError(
            f"{name!r} of all ranks are concatenated for a homogenizer that reads them, so they must have the shape "
            f"[batch, ...] and may differ in the batch only; on this rank they are {list(value.shape[1:])}. Pad them, "
            "or use another homogenizer."
        )
    same = value.stride(0) == 0  # one tensor that was expanded to all tasks
    one = (value[:1] if same else value).transpose(0, 1).contiguous()
    sizes = [int(size) for size in communicator.all_gather_numbers([len(one)])[:, 0].tolist()]
    start = sum(sizes[: communicator.rank])
    padded = one.new_zeros(max(sizes), *one.shape[1:])
    padded[: len(one)] = one
    parts = communicator.all_gather(padded).view(len(sizes), *padded.shape)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).transpose(0, 1)
    return whole.expand(len(value), *whole.shape[1:]) if same else whole, slice(start, start + len(one))

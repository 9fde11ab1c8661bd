"""The means of the losses over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.replicas import check_replicas, digests


@dataclass(frozen=True)
class MeanLosses:
    """Means over ranks.

    Attributes:
        losses: the mean losses of the tasks that have examples on at least one rank.
        totals: for each of these tasks, by slot, the number of examples on all ranks, by which sums are divided.
        one_pass: True if on every rank a weighted sum takes one backward pass.
    """

    losses: Tensor
    totals: dict[int, float]
    one_pass: bool


def mean_losses(
    derivatives: Derivatives, communicator: GroupCommunicator, compared: Mapping[str, Tensor]
) -> MeanLosses:
    """Return the means; `compared`: tensors that must have the same values on all ranks."""
    tasks, weights = derivatives.graph.tasks, derivatives.graph.loss_weights
    own_counts, own_losses = [0.0] * tasks.tasks, [0.0] * tasks.tasks
    for slot, weight, loss in zip(tasks.slots, weights, tasks.losses, strict=True):
        own_counts[slot], own_losses[slot] = weight, loss.item()
    own = [*own_counts, *own_losses, derivatives.one_pass, *digests(compared.values())]
    gathered = communicator.all_gather_numbers(own)
    counts, losses, one_pass, elements_of_all = torch.split(gathered, [tasks.tasks] * 2 + [1, len(compared)], dim=1)
    check_replicas(compared, elements_of_all)
    totals = {slot: total for slot, total in enumerate(counts.sum(0).tolist()) if total > 0}
    if not totals:
        raise OptionError("`examples` must be positive for at least one task on one rank; got 0 everywhere.")
    sums = torch.where(counts > 0, counts * losses, 0.0).sum(0)
    return MeanLosses(torch.stack([sums[slot] / total for slot, total in totals.items()]), totals, bool(one_pass.all()))

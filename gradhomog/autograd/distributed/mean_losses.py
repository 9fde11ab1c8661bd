"""The mean of each task's loss over ranks, and the share of each rank in it, which the rows have too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.autograd.batch import Batch
from gradhomog.autograd.inputs import TaskLosses
from gradhomog.errors import OptionError
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.ranks import Ranks
from gradhomog.ranks.replicas import check_replicas, first_elements


@dataclass(frozen=True)
class MeanLosses:
    """Means over ranks.

    Attributes:
        slots: the tasks that are present on at least one rank.
        losses: their mean losses.
        shares: w_ri of this rank for each of these tasks.
        one_pass: True if on every rank a weighted sum takes one backward pass.
    """

    slots: list[int]
    losses: Tensor
    shares: dict[int, float]
    one_pass: bool


def mean_losses(
    batch: Batch, examples: list[float], collectives: Collectives, compared: Mapping[str, Tensor]
) -> MeanLosses:
    """Return the means; `compared`: parameters that must have the same values on all ranks."""
    tasks = batch.tasks
    local = dict(zip(tasks.slots, (loss.item() for loss in tasks.losses), strict=True))
    values = [local.get(slot, 0.0) for slot in range(tasks.tasks)]
    own_numbers = [*examples, *values, batch.derivatives.one_pass, *first_elements(compared)]
    gathered = collectives.all_gather_numbers(own_numbers)
    sizes = [tasks.tasks, tasks.tasks, 1, len(compared)]
    counts, losses, one_pass, elements_of_all = torch.split(gathered, sizes, dim=1)
    check_replicas(compared, elements_of_all)
    totals = counts.sum(0)
    slots = [slot for slot, total in enumerate(totals.tolist()) if total > 0]
    if not slots:
        raise OptionError("`examples` must be positive for at least one task on one rank; got 0 everywhere.")
    shares = counts[:, slots] / totals[slots]
    means = torch.where(shares > 0, shares * losses[:, slots], 0.0).sum(0)
    own = dict(zip(slots, shares[collectives.rank].tolist(), strict=True))
    return MeanLosses(slots, means, own, bool(one_pass.all()))


def examples_of_tasks(ranks: Ranks, tasks: TaskLosses) -> list[float]:
    """Return the number of examples of every task on this rank, 0 for absent tasks.

    Raises:
        OptionError: the number of entries is not that of the tasks.
    """
    given = 1.0 if ranks.examples is None else ranks.examples
    numbers = [float(given)] * tasks.tasks if isinstance(given, int | float) else [float(number) for number in given]
    if len(numbers) != tasks.tasks:
        raise OptionError(
            f"`examples` must be a number or one number for each of the {tasks.tasks} tasks; got {len(numbers)}."
        )
    return [number if slot in tasks.slots else 0.0 for slot, number in enumerate(numbers)]

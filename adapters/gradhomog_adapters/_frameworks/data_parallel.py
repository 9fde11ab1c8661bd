"""The ranks of a trainer that distributes batches, and the losses of the batch of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradhomog import OptionError, Ranks


def batch_ranks(group: Any, default: Ranks | None) -> Ranks | None:
    """Return the ranks over which a batch is distributed: `group` or, if it is None, those of the trainer.

    Raises:
        OptionError: `group` distributes tasks.
    """
    ranks = default if group is None else group if isinstance(group, Ranks) else Ranks("batch", group)
    if ranks is not None and ranks.over != "batch":
        raise OptionError(
            f"a trainer distributes the examples of a batch: `group` must be Ranks('batch', ...); got {ranks!r}. For "
            "different tasks on each rank, use gradhomog.backward in your own loop."
        )
    return ranks


def mean_losses(losses: Mapping[str, Tensor | None], ranks: Ranks | None) -> dict[str, Tensor | None]:
    """Return the losses of the batch of all ranks, the same on each; None for a task without a loss on any rank.

    Cost: on several ranks, one all-reduce of 2 numbers per task, and one copy to the CPU, where the result lies.
    """
    if ranks is None or ranks.size == 1:
        return dict(losses)
    given: Any = 1.0 if ranks.examples is None else ranks.examples
    numbers = [given] * len(losses) if isinstance(given, int | float) else given
    zero = next(loss for loss in losses.values() if loss is not None).detach().double().new_zeros(2)
    pairs = [
        zero if loss is None or number == 0 else torch.stack([number * loss.detach().double(), zero[0] + number])
        for loss, number in zip(losses.values(), numbers, strict=True)
    ]
    sums = torch.stack(pairs)
    dist.all_reduce(sums, group=ranks.group)
    totals, counts = sums.cpu().unbind(1)
    return {
        name: total / count if count > 0 else None for name, total, count in zip(losses, totals, counts, strict=True)
    }

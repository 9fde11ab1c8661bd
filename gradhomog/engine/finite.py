"""The policy for NaN and infinity: raise, or leave the task out; before anything is computed or learnt from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from gradhomog import rows as row_math
from gradhomog.engine.observation import Observation
from gradhomog.errors import NonfiniteError

Nonfinite = Literal["raise", "drop"]


Judged = Literal["norms", "rows", "afterwards"]
"""By what a row is judged: its norm, which somebody needs anyway; a sum over it; or nothing yet."""


def apply(observation: Observation, policy: Nonfinite, judged: Judged) -> tuple[Observation, tuple[int, ...]]:
    """The observation of the finite tasks, and their indices; losses and features are always looked at.

    Raises:
        NonfiniteError: the policy is `"raise"` and a task is not finite, or no task is.
    """
    # A sum of finite numbers, none near float64's end, is finite; and one is the sooner read.
    sums = [cotangents.detach().flatten(1).sum(1, dtype=torch.float64) for cotangents in observation.feature_cotangents]
    if judged == "norms":
        squares = observation.block_squared_norms[1]
        sums.append(squares[0] if len(squares) == 1 else squares.sum(0))
    if observation.losses is not None:
        sums.append(observation.losses)
    flags = [[math.isfinite(total) for total in column.tolist()] for column in sums]
    if judged == "rows":
        flags.append(row_math.finite_tasks(observation.given))
    tasks = len(observation.keys)
    kept = [index for index in range(tasks) if all(column[index] for column in flags)]
    if len(kept) == tasks:
        return observation, tuple(kept)
    if policy == "raise" or not kept:
        lost = [index for index in range(tasks) if index not in kept]
        raise NonfiniteError(_describe(observation, lost) + (_ADVICE if policy == "raise" else " No task is left."))
    reduced = Observation(
        row_math.select(observation.given, kept),
        None if observation.losses is None else observation.losses[kept],
        [observation.keys[index] for index in kept],
        [value[kept] for value in observation.features],
        [value[kept] for value in observation.feature_cotangents],
        None if observation.targets is None else observation.targets[kept],
        gramian_wanted=observation.gramian_wanted,
    )
    return reduced, tuple(kept)


def _describe(observation: Observation, lost: Sequence[int]) -> str:
    index = lost[0]
    key, losses = observation.keys[index], observation.losses
    rate = "Lower the learning rate, that of the inner loop if there is one"
    if losses is not None and not torch.isfinite(losses[index]):
        advice = f"Look at its data. {rate}."
        where = f"its loss is {losses[index].item()}"
    else:
        names, squares = observation.block_squared_norms  # not the rows, which may not lie in one tensor
        bad = [name for name, fine in zip(names, torch.isfinite(squares[:, index]).tolist(), strict=True) if not fine]
        where = f"its gradient is not finite in {', '.join(bad[:4]) or 'the row or by its features'}"
        advice = f"{rate}, whose optimizer, if Adam-like, needs an eps_root."
    others = f" (and tasks {', '.join(map(str, lost[1:]))})" if len(lost) > 1 else ""
    return (
        f"task {index}{f' of domain {key.domain}' if key.domain else ''}{others} is not finite: {where}. {advice} "
        "Nothing was changed."
    )


_ADVICE = ' Or use nonfinite="drop" to leave such tasks out of the step.'

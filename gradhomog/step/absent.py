"""Weights beside those of absent tasks, so that the ratio of two weights does not depend on the tasks in a step."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gradhomog.step.member import Member
from gradhomog.step.step import Step, TaskKey

STEPS_OF_ONE_TASK = 10
"""The number of consecutive steps of one task after which a pipeline without an effect warns."""


def absent_keys(step: Step, last_losses: Mapping[str, float | None]) -> tuple[TaskKey, ...]:
    """Return the tasks that the caller named as absent, and, if tasks have names, those of earlier steps."""
    named = bool(step.keys[0].domain)
    met = [TaskKey(place, name) for place, name in enumerate(last_losses)] if named else []
    present, found = set(step.names), {key.by(): key for key in (*met, *step.absent)}
    return tuple(key for name, key in found.items() if name not in present)


def losses_of_absent(step: Step, last_losses: Mapping[str, float | None]) -> Tensor:
    """Return the last loss of each absent task, `[absent]`; the mean of the present ones for a task never met."""
    mean = 0.0 if step._losses is None else float(step._losses.detach().mean())
    found = [last_losses.get(key.by()) for key in step.absent]
    return torch.tensor([mean if loss is None else loss for loss in found], dtype=torch.float64)


def weights_with_absent(member: Member, view: Step, absent_losses: Tensor) -> Tensor:
    """Return weights of the tasks in the step and of the absent ones, `[tasks + absent]`, with mean one over all.

    Only for methods whose weights are functions of losses and state.
    """
    losses = None if view._losses is None else torch.cat([view._losses, absent_losses])
    whole = replace(view, keys=(*view.keys, *view.absent), absent=(), _losses=losses)
    weights: Tensor = member.act(whole).value
    # The paper's scale is that of a sum, which is divided by the number of tasks in the step.
    return weights * (view.tasks / whole.tasks) if member.options.get("scale") == "paper" else weights

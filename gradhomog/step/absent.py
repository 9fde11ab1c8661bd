"""Weights beside those of absent tasks, so that the ratio of two weights does not depend on the tasks in a step."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gradhomog.step.member import Member
from gradhomog.step.step import StageResult, Step, TaskKey

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


def weigh_with_absent(
    member: Member, view: Step, result: StageResult, absent_losses: Tensor
) -> tuple[StageResult, Tensor]:
    """Return a result with weights whose mean is one over the tasks in the step and the absent ones.

    A method that reads nothing but losses acts once more, on all of them. Others read `view.absent` themselves, or do
    not weigh tasks.

    Args:
        result: of the member on the tasks in the step, from which its state is computed.
        absent_losses: `[absent]`.

    Returns:
        The result, and the losses of absent tasks for later members.
    """
    if not member.weighs or member.homogenizer.weights_absent or result.value.dim() > 1:
        return result, absent_losses
    losses = None if view._losses is None else torch.cat([view._losses, absent_losses])
    whole = replace(view, keys=(*view.keys, *view.absent), absent=(), _losses=losses)
    weights: Tensor = member.act(whole).value
    if member.options.get("scale") == "paper":  # that of a sum, which is divided by the number of tasks in the step
        weights = weights * (view.tasks / whole.tasks)
    if member.homogenizer.weights_losses:
        absent_losses = absent_losses * weights[view.tasks :]
    return result._replace(value=weights[: view.tasks]), absent_losses

"""Homogenize all parameters together, or groups of parameters (`per`) separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradhomog.autograd.parameter_groups import Per, group_names
from gradhomog.rows import Direction, Jacobian
from gradhomog.step.nonfinite import drop_nonfinite, require_finite_inputs
from gradhomog.step.pipelines import PendingStep, Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step_inputs import StepInputs, select_traces
from gradhomog.step.task_key import task_keys


def compute_by_group(
    pipe: Pipeline, jacobian: Jacobian, losses: Tensor, per: Per, inputs: Mapping[str, Any]
) -> tuple[StepReport, list[PendingStep]]:
    """Compute the steps of all groups; no state is assigned. With ranks all of them take the groups in the same order.

    Args:
        jacobian: the rows of one process, or those of all ranks. If it was exchanged, it was exchanged by group.
        inputs: keyword arguments of `Pipeline.compute`, with `slots` and `domains`.

    Returns:
        The result for all parameters; the steps of the groups and that of the pipeline itself.

    Raises:
        NonfiniteError, OptionError, PluginRunError, NotDifferentiableError.
    """
    if per == "model":
        pending = pipe.compute(jacobian, losses, **inputs)
        return pending.result, [pending]
    jacobian, losses, inputs = _finite_tasks(pipe, jacobian, losses, inputs)
    groups = group_names(jacobian.names, per)
    steps = {
        name: pipe.part(name).compute(jacobian.select_parameters(members), losses, **inputs)
        for name, members in groups.items()
    }
    direction: Direction = {}
    measured: dict[str, Any] = {}
    for name, step in steps.items():
        direction.update(step.result.direction)
        measured.update({f"{name}: {label}": numbers for label, numbers in step.result.measured.items()})
    direction = {name: direction[name] for name in jacobian.names}
    gramians = [step.result.gramian for step in steps.values() if step.result.gramian is not None]
    gramian = torch.stack(gramians).sum(0) if len(gramians) == len(steps) else None
    unconverged = tuple(f"{name}: {label}" for name, step in steps.items() for label in step.result.unconverged)
    first = next(iter(steps.values())).result
    report = StepReport(direction, first.keys, first.losses, None, gramian, (), measured, unconverged)
    return report, [*steps.values(), PendingStep(report, pipe.count_step)]


def _finite_tasks(
    pipe: Pipeline, jacobian: Jacobian, losses: Tensor, inputs: Mapping[str, Any]
) -> tuple[Jacobian, Tensor, dict[str, Any]]:
    """Apply the policy for NaN and infinity to all groups: a task that one group drops is dropped from all."""
    slots, domains, targets = inputs["slots"], inputs["domains"], inputs.get("targets")
    whole = StepInputs(
        jacobian,
        task_keys(tuple(slots), tuple(domains or ())),
        losses,
        inputs.get("features", ()),
        inputs.get("feature_grads", ()),
    )
    if (inputs["nonfinite"] or pipe.nonfinite) == "drop":
        whole = drop_nonfinite(whole, pipe.stages.transforming)
    else:
        require_finite_inputs(whole, ())
    kept = [slots.index(key.slot) for key in whole.keys]
    kept_losses = whole.losses_on_cpu
    assert kept_losses is not None  # as `losses`
    return whole.jacobian, kept_losses, {
        **inputs, "nonfinite": "raise",
        "slots": [slots[index] for index in kept],
        "domains": [domains[index] for index in kept] if domains else None,
        "targets": None if targets is None else targets[kept],
        "features": whole.features, "feature_grads": whole.feature_grads,
        "kernel_traces": select_traces(inputs.get("kernel_traces"), kept),
    }  # fmt: skip

"""The step of a traced batch: its gradients homogenized, written to `.grad`, and the states assigned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gradhomog.autograd.batch import Batch, without_factor
from gradhomog.autograd.derivatives import ThroughFeatures, as_dense
from gradhomog.autograd.groups import Per, group_names
from gradhomog.autograd.lazy import LazyJacobian, require_used
from gradhomog.errors import NonfiniteError
from gradhomog.homogenization import Homogenization, PendingStep
from gradhomog.host.nonfinite import drop_nonfinite, require_finite_inputs
from gradhomog.host.step_inputs import StepInputs
from gradhomog.jacobian import DenseJacobian, Direction, Jacobian, all_finite
from gradhomog.pipelines import Pipeline
from gradhomog.task_key import TaskKey

Level = Literal["parameters", "features"]
Heads = Literal["own", "weighted"]
Gradients = list[tuple[Tensor, Tensor]]
"""Leaves with the gradients to be added to their `.grad`."""


@dataclass(frozen=True)
class Options:
    """The options of `gradhomog.backward` that concern the step.

    Attributes:
        factor: of all gradients, from a gradient scaler or an incoming gradient.
        scaled: a gradient scaler skips a step whose gradients are infinite, so that infinity is written.
    """

    domains: tuple[str, ...] = ()
    targets: Tensor | None = None
    level: Level = "parameters"
    per: Per = "model"
    heads: Heads = "own"
    inspect: bool = False
    factor: float = 1.0
    scaled: bool = False


@dataclass(frozen=True)
class ComputedStep:
    """A step whose gradients are known, with nothing written and no state assigned yet.

    Attributes:
        result: of the step.
        shared, own: gradients of the shared parameters and of the heads, with the factor of the gradient scaler.
    """

    result: Homogenization
    shared: Gradients
    own: Gradients
    pending: Sequence[PendingStep]

    def commit(self) -> None:
        """Assign the new states of all homogenizers."""
        for step in self.pending:
            step.commit()


def write(step: ComputedStep, heads: Heads) -> Homogenization:
    """Add the gradients to `.grad` and assign the states."""
    with torch.set_grad_enabled(any(gradient.requires_grad for _, gradient in (*step.shared, *step.own))):
        for leaf, gradient in step.shared:
            accumulate(leaf, gradient)
        for leaf, gradient in step.own:
            accumulate(leaf, gradient, shared_memory=heads == "own")
    step.commit()
    return step.result


def compute_step(pipe: Pipeline, batch: Batch, jacobian: Jacobian, options: Options) -> ComputedStep:
    """Homogenize a batch's gradients.

    Raises:
        NonfiniteError, OptionError, PluginRunError, NotDifferentiableError: nothing was written, no state assigned.
    """
    graph = batch.derivatives.graph
    same = len({(loss.dtype, loss.device) for loss in batch.tasks.losses}) == 1
    losses = torch.stack(batch.tasks.losses if same else [loss.double() for loss in batch.tasks.losses])
    shown: dict[str, Any] = {
        "domains": options.domains, "slots": batch.tasks.slots, "features": batch.features,
        "feature_grads": batch.feature_grads, "targets": options.targets, "create_graph": graph.create_graph,
        "inspect": options.inspect, "nonfinite": "raise" if options.scaled else None,
    }  # fmt: skip
    try:
        if options.per == "model":
            pending = [pipe.compute(jacobian, losses, **shown)]
            result = pending[0].result
        else:
            result, pending = _by_group(pipe, jacobian, losses, options.per, shown)
        if isinstance(jacobian, LazyJacobian):
            direction, unused = result.direction, jacobian.unused
        else:
            direction, unused = _through_shared(batch, result.direction)
            result = replace(result, direction=direction)
    except NonfiniteError:
        if not options.scaled:
            raise
        return _overflowed(batch)
    shared = [
        (graph.shared[name], gradient if graph.factor == 1 else graph.factor * gradient)
        for name, gradient in direction.items()
        if name not in unused
    ]
    return ComputedStep(result, shared, list(_own(batch, result, options.heads)), pending)


def _by_group(
    pipe: Pipeline, jacobian: Jacobian, losses: Tensor, per: Per, shown: Mapping[str, Any]
) -> tuple[Homogenization, list[PendingStep]]:
    """Each group of parameters homogenized by a pipeline of its own; no state is assigned unless all succeed."""
    assert isinstance(jacobian, LazyJacobian)  # features have no groups
    rows, shown = jacobian.per_task, dict(shown)
    slots, domains = shown["slots"], shown["domains"]
    keys = tuple(TaskKey(slot, domains[index] if domains else "") for index, slot in enumerate(slots))
    inputs = StepInputs(rows, keys, losses, shown["features"], shown["feature_grads"])
    # Checked as a whole first: a task that is not finite in one group is out of all.
    if (shown["nonfinite"] or pipe.nonfinite) == "drop":
        inputs = drop_nonfinite(inputs, pipe.stages.transforming)
    else:
        require_finite_inputs(inputs, ())
    kept = [slots.index(key.slot) for key in inputs.keys]
    shown["slots"], shown["nonfinite"] = [slots[index] for index in kept], "raise"
    shown["domains"] = [domains[index] for index in kept] if domains else None
    shown["targets"] = None if shown["targets"] is None else shown["targets"][kept]
    shown["features"], shown["feature_grads"] = inputs.features, inputs.feature_grads
    rows = rows if len(kept) == len(slots) else rows.select(kept)
    steps = {
        name: pipe.part(name).compute(rows.only(members), inputs.losses, **shown)
        for name, members in group_names(jacobian.names, per).items()
    }
    direction: Direction = {}
    measured: dict[str, Any] = {}
    for name, step in steps.items():
        direction.update(step.result.direction)
        measured.update({f"{name}: {label}": numbers for label, numbers in step.result.measured.items()})
    known = [step.result.gramian for step in steps.values() if step.result.gramian is not None]
    gramian = torch.stack(known).sum(0) if len(known) == len(steps) else None
    unconverged = tuple(f"{name}: {label}" for name, step in steps.items() for label in step.result.unconverged)
    tasks = next(iter(steps.values())).result.tasks
    return Homogenization(direction, tasks, None, gramian, (), measured, unconverged), list(steps.values())


def feature_jacobian(derivatives: ThroughFeatures) -> Jacobian:
    """∂L_i/∂z as rows: `[tasks, *shape]`, float32 or wider, by the place of the tensor among the features."""
    columns = list(zip(*derivatives.feature_grads, strict=True))
    names = ["features"] if len(columns) == 1 else [f"features.{index}" for index in range(len(columns))]
    factor = derivatives.graph.factor
    return DenseJacobian({
        name: torch.stack([without_factor(grad, top, factor) for grad in column])
        for name, column, top in zip(names, columns, derivatives.features, strict=True)
    })  # fmt: skip


def _through_shared(batch: Batch, feature_direction: Direction) -> tuple[Direction, frozenset[str]]:
    """The shared parameters' gradients that belong to a homogenized gradient w.r.t. the features; and unused names."""
    derivatives = batch.derivatives
    assert isinstance(derivatives, ThroughFeatures)
    graph = derivatives.graph
    pairs = zip(feature_direction.values(), derivatives.features, strict=True)
    back = derivatives.back([(graph.factor * grad).to(top.dtype) for grad, top in pairs])
    unused = frozenset(name for name, gradient in zip(graph.shared, back, strict=True) if gradient is None)
    require_used(graph.shared, unused)
    direction = {
        name: torch.zeros_like(like, requires_grad=False) if gradient is None else gradient / graph.factor
        for (name, like), gradient in zip(graph.shared.items(), back, strict=True)
    }
    if not all_finite(direction.values()):
        raise NonfiniteError(
            "the gradient that goes back from the features is not finite, though every task's gradient w.r.t. them is. "
            "Lower the learning rate. Nothing was changed."
        )
    return direction, unused


def _own(batch: Batch, result: Homogenization, heads: Heads) -> Iterator[tuple[Tensor, Tensor]]:
    """The heads' leaves with their gradients, times the task's share of the step for `heads="weighted"`."""
    factors = dict.fromkeys(result.tasks, 1.0)
    if heads == "weighted":
        assert result.weights is not None  # checked before the step
        factors = dict(zip(result.tasks, (result.weights / len(result.tasks)).tolist(), strict=True))
    for slot, pairs in zip(batch.tasks.slots, batch.own_gradients, strict=True):
        for leaf, gradient in pairs:
            if gradient is not None and slot in factors:
                yield leaf, gradient if heads == "own" else factors[slot] * gradient


def _overflowed(batch: Batch) -> ComputedStep:
    """Infinity for every gradient: the gradient scaler then skips this step and lowers its scale. No state changes."""
    shared = batch.derivatives.graph.shared
    direction = {name: torch.full_like(parameter, torch.inf, requires_grad=False) for name, parameter in shared.items()}
    own = {id(leaf): leaf for leaves in batch.own for leaf in leaves}.values()
    infinite = [(leaf, torch.full_like(leaf, torch.inf, requires_grad=False)) for leaf in own]
    pairs = [(shared[name], gradient) for name, gradient in direction.items()]
    return ComputedStep(Homogenization(direction, (), None, None), pairs, infinite, ())


def accumulate(leaf: Tensor, gradient: Tensor, shared_memory: bool = False) -> None:
    """Add a gradient to a leaf's `.grad`; a tensor that is no leaf has none, and its gradient is only returned.

    `shared_memory`: the gradient is as autograd returned it, and its memory may belong to another tensor as well.
    """
    if not leaf.is_leaf:
        return
    before = as_dense(leaf.grad)
    if before is not None:
        leaf.grad = before + gradient if gradient.requires_grad else before.add_(gradient)  # strided, if it was sparse
    elif gradient.requires_grad:
        leaf.grad = gradient
    elif gradient.stride() != leaf.stride() or gradient.dtype != leaf.dtype:
        # Laid out as the leaf is: fused optimizers read both side by side.
        leaf.grad = torch.empty_like(leaf, requires_grad=False).copy_(gradient)
    else:
        leaf.grad = gradient.clone() if shared_memory else gradient

"""Homogenize the gradients of one batch, add the result to `.grad`, and store the new states of the homogenizers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gradhomog.autograd.batch import Batch, without_factor
from gradhomog.autograd.by_group import compute_by_group
from gradhomog.autograd.derivatives import FeatureDerivatives, as_dense
from gradhomog.autograd.lazy import LazyJacobian, require_used
from gradhomog.autograd.parameter_groups import Per
from gradhomog.errors import NonfiniteError
from gradhomog.ranks.collectives import Collectives
from gradhomog.rows import DenseJacobian, Direction, Jacobian, all_finite
from gradhomog.step.pipelines import PendingStep, Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step import KernelTraces

Level = Literal["parameters", "features"]
Heads = Literal["own", "weighted"]
Gradients = list[tuple[Tensor, Tensor]]
"""Leaves with the gradients to add to their `.grad`."""


@dataclass(frozen=True)
class Options:
    """The options of `gradhomog.backward` that concern the step.

    Attributes:
        domains: one for each present task, or none; across ranks for each task.
        factor: factor of all gradients, from a gradient scaler or an incoming gradient.
        kernel_traces: computes the traces of the residuals' tangent kernels; None if no homogenizer reads them.
        scaled: True with a gradient scaler. On overflow infinity is then written, so that the scaler skips the step.
        collectives: exchange rows with other ranks; None for one process.
    """

    domains: tuple[str, ...] = ()
    targets: Tensor | None = None
    level: Level = "parameters"
    per: Per = "model"
    heads: Heads = "own"
    inspect: bool = False
    factor: float = 1.0
    scaled: bool = False
    kernel_traces: KernelTraces | None = None
    collectives: Collectives | None = None


@dataclass(frozen=True)
class ComputedStep:
    """A computed step, before gradients are written and states are assigned.

    Attributes:
        result: the result of the step.
        shared, unshared: gradients of the shared parameters and of the heads, with the factor of the gradient scaler.
        pending: the steps of the pipelines, one per group of parameters.
    """

    result: StepReport
    shared: Gradients
    unshared: Gradients
    pending: Sequence[PendingStep]

    def commit(self) -> None:
        """Assign the new states of all homogenizers."""
        for step in self.pending:
            step.commit()


def write(step: ComputedStep, heads: Heads) -> StepReport:
    """Add the gradients to `.grad` and assign the states."""
    with torch.set_grad_enabled(any(gradient.requires_grad for _, gradient in (*step.shared, *step.unshared))):
        for leaf, gradient in step.shared:
            accumulate(leaf, gradient)
        for leaf, gradient in step.unshared:
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
    inputs: dict[str, Any] = {
        "domains": options.domains, "slots": batch.tasks.slots, "features": batch.features,
        "feature_grads": batch.feature_grads, "targets": options.targets, "create_graph": graph.create_graph,
        "kernel_traces": options.kernel_traces,
        "inspect": options.inspect, "nonfinite": "raise" if options.scaled else None,
    }  # fmt: skip
    try:
        result, pending = compute_by_group(pipe, jacobian, losses, options.per, inputs)
        if isinstance(jacobian, LazyJacobian):
            direction, unused = result.direction, jacobian.unused
        else:
            direction, unused = _through_shared(batch, result.direction)
            result = replace(result, direction=direction)
    except NonfiniteError:
        if not options.scaled:
            raise
        return infinite_step(batch)
    shared = [
        (graph.shared[name], gradient if graph.factor == 1 else graph.factor * gradient)
        for name, gradient in direction.items()
        # A homogenizer that replaces rows may have kept some from earlier steps.
        if name not in unused or (result.weights is None and bool(gradient.any()))
    ]
    return ComputedStep(result, shared, list(_head_gradients(batch, result, options.heads)), pending)


def feature_jacobian(derivatives: FeatureDerivatives) -> Jacobian:
    """Return the rows ∂L_i/∂z, `[tasks, *shape]`, float32 or wider, named by the index of the feature tensor."""
    columns = list(zip(*derivatives.feature_grads, strict=True))
    names = ["features"] if len(columns) == 1 else [f"features.{index}" for index in range(len(columns))]
    factor = derivatives.graph.factor
    return DenseJacobian({
        name: torch.stack([without_factor(grad, feature, factor) for grad in column])
        for name, column, feature in zip(names, columns, derivatives.features, strict=True)
    })  # fmt: skip


def _through_shared(batch: Batch, feature_direction: Direction) -> tuple[Direction, frozenset[str]]:
    """Backpropagate a homogenized gradient w.r.t. the features; return the direction and the unused parameters."""
    derivatives = batch.derivatives
    assert isinstance(derivatives, FeatureDerivatives)
    graph = derivatives.graph
    pairs = zip(feature_direction.values(), derivatives.features, strict=True)
    gradients = derivatives.backpropagate([(graph.factor * grad).to(feature.dtype) for grad, feature in pairs])
    unused = frozenset(name for name, gradient in zip(graph.shared, gradients, strict=True) if gradient is None)
    require_used(graph.shared, unused)
    direction = {
        name: torch.zeros_like(like, requires_grad=False) if gradient is None else gradient / graph.factor
        for (name, like), gradient in zip(graph.shared.items(), gradients, strict=True)
    }
    if not all_finite(direction.values()):
        raise NonfiniteError(
            "the gradient of the shared parameters is not finite, although every task's gradient w.r.t. the features "
            "is. Lower the learning rate. Nothing was changed."
        )
    return direction, unused


def _head_gradients(batch: Batch, result: StepReport, heads: Heads) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the heads' leaves with their gradients, times the task's weight/N for `heads="weighted"`."""
    factors = head_factors(result, heads)
    for slot, pairs in zip(batch.tasks.slots, batch.unshared_gradients, strict=True):
        for leaf, gradient in pairs:
            if gradient is not None and slot in factors:
                yield leaf, gradient if heads == "own" else factors[slot] * gradient


def head_factors(result: StepReport, heads: Heads) -> dict[int, float]:
    """Return the factor of each head's gradient, by the slot of its task."""
    if heads == "own":
        return dict.fromkeys(result.tasks, 1.0)
    assert result.weights is not None  # checked before the step
    return dict(zip(result.tasks, (result.weights / len(result.tasks)).tolist(), strict=True))


def infinite_step(batch: Batch) -> ComputedStep:
    """Return a step with infinite gradients: the gradient scaler skips it and lowers its scale. No state changes."""
    shared = batch.derivatives.graph.shared
    direction = {name: torch.full_like(parameter, torch.inf, requires_grad=False) for name, parameter in shared.items()}
    unshared = {id(leaf): leaf for leaves in batch.unshared_leaves for leaf in leaves}.values()
    infinite = [(leaf, torch.full_like(leaf, torch.inf, requires_grad=False)) for leaf in unshared]
    pairs = [(shared[name], gradient) for name, gradient in direction.items()]
    return ComputedStep(StepReport(direction, ()), pairs, infinite, ())


def accumulate(leaf: Tensor, gradient: Tensor, shared_memory: bool = False) -> None:
    """Add a gradient to a leaf's `.grad`; do nothing for a tensor that is not a leaf.

    `shared_memory`: autograd returned the gradient, so another tensor may share its memory.
    """
    if not leaf.is_leaf:
        return
    before = as_dense(leaf.grad)
    if before is not None:
        leaf.grad = before + gradient if gradient.requires_grad else before.add_(gradient)  # dense from now on
    elif gradient.requires_grad:
        leaf.grad = gradient
    elif gradient.stride() != leaf.stride() or gradient.dtype != leaf.dtype:
        # With the strides and dtype of the leaf, which fused optimizers require.
        leaf.grad = torch.empty_like(leaf, requires_grad=False).copy_(gradient)
    else:
        leaf.grad = gradient.clone() if shared_memory else gradient

"""Compute one step from losses: rows, homogenization, and the gradients to write, with the new states to assign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives, DirectDerivatives, FeatureDerivatives
from gradhomog.autograd.fully_sharded import FullyShardedDerivatives, FullyShardedRows
from gradhomog.autograd.loss_graph import LossGraph, as_dense
from gradhomog.autograd.loss_step import LossStep
from gradhomog.autograd.parameter_groups import Per, group_names
from gradhomog.autograd.row_source import LeafGradients, OwnRows, RowSource
from gradhomog.autograd.rows_over_ranks import BatchRows, LocalRows, TaskRows
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.ranks.communicator import Communicator, GroupCommunicator
from gradhomog.rows import Direction
from gradhomog.step.nonfinite import Nonfinite, drop_nonfinite, require_finite_inputs
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step import Step


@dataclass(frozen=True)
class ComputedStep:
    """A computed step, before gradients are written and states are assigned.

    Attributes:
        result: the result of the step.
        shared, unshared: gradients of the shared parameters and of the heads, with the factor of the gradient scaler.
        commits: assign the new states, one function per group of parameters.
    """

    result: StepReport
    shared: LeafGradients
    unshared: LeafGradients
    commits: Sequence[Callable[[], None]] = ()

    def write(self) -> StepReport:
        """Add the gradients to `.grad` and assign the states."""
        with torch.set_grad_enabled(any(gradient.requires_grad for _, gradient in (*self.shared, *self.unshared))):
            for leaf, gradient in self.shared:
                accumulate(leaf, gradient)
            for leaf, gradient in self.unshared:
                accumulate(leaf, gradient, shared_memory=True)
        self.commit()
        return self.result

    def commit(self) -> None:
        """Assign the new states of all homogenizers."""
        for commit in self.commits:
            commit()


def compute_step(
    step: LossStep, *, factor: float = 1.0, create_graph: bool = False, retain_graph: bool = False
) -> ComputedStep:
    """Differentiate the losses and homogenize their gradients, without writing any.

    Args:
        factor: factor of all gradients, from a gradient scaler or an incoming gradient.
    """
    graph = replace(
        step.graph, factor=factor, create_graph=create_graph,
        retain_graph=retain_graph or step.kernel_traces is not None,  # homogenizers may read traces after the rows
        loss_weights=step.communicator.examples(step.graph.tasks.slots),
    )  # fmt: skip
    through_features = step.level == "features" or step.pipe.requirements.reads_features
    return homogenize(step, differentiate(graph, through_features))


def differentiate(graph: LossGraph, through_features: bool) -> Derivatives:
    """Return the derivatives of losses, whose gradients are computed on demand.

    `through_features`: compute the gradients w.r.t. the features immediately, and the others from them. One pass from
    loss to parameters is cheaper than two, so features are used only if gradients w.r.t. them are read.
    """
    if graph.create_graph and graph.compiled:
        raise OptionError(
            "create_graph=True requires second derivatives, but a part of the graph was computed by a torch.compile'd "
            "function, which has none. Compute the losses by the original module."
        )
    if graph.sharded:
        return FullyShardedDerivatives(graph)
    return FeatureDerivatives(graph) if graph.features and through_features else DirectDerivatives(graph)


def homogenize(step: LossStep, derivatives: Derivatives) -> ComputedStep:
    """Homogenize the gradients of losses; the only step there is, of one process and of many.

    Raises:
        NonfiniteError, OptionError, PluginRunError, NotDifferentiableError: nothing was written, no state assigned.
    """
    graph = derivatives.graph
    source: RowSource[Any] = OwnRows[Communicator](step, derivatives, step.communicator)
    if isinstance(step.communicator, GroupCommunicator):
        source = _rows_across_ranks(step, derivatives, step.communicator)
    try:
        result, commits = homogenize_groups(
            step.pipe, source.make_step(), step.per, create_graph=graph.create_graph, inspect=step.inspect,
            nonfinite="raise" if step.scaled else None,
        )  # fmt: skip
        direction = source.to_parameters(result.direction)
    except NonfiniteError as error:
        if not step.scaled:
            if source.written_before:
                error.add_note(source.written_before)
            raise
        source.overflow()
        return infinite_step(graph)
    unused = source.unused()
    shared = [
        (graph.shared[name], gradient if graph.factor == 1 else graph.factor * gradient)
        for name, gradient in direction.items()
        # A homogenizer that replaces rows may have kept some from earlier steps.
        if name not in unused or (result.weights is None and bool(gradient.any()))
    ]
    if direction is not result.direction or source.exchanged != "nothing":
        result = replace(result, direction=direction, exchanged=source.exchanged)
    factors = dict.fromkeys(result.tasks, 1.0)
    if step.heads == "weighted":
        assert result.weights is not None  # by `check_options`
        factors = dict(zip(factors, (result.weights / len(factors)).tolist(), strict=True))
    return ComputedStep(result, shared, source.head_gradients(factors), commits)


def _rows_across_ranks(step: LossStep, derivatives: Derivatives, communicator: GroupCommunicator) -> RowSource[Any]:
    """Return the source of the rows of all ranks; every rank receives the same direction.

    Raises:
        OptionError: the homogenizer or the option that is not supported across ranks; `examples` is a list whose length
            is not the number of tasks.
    """
    ranks, requirements, tasks = communicator.ranks, step.pipe.requirements, derivatives.graph.tasks.tasks
    ranks.check_pipeline(step.pipe)
    if derivatives.graph.create_graph:
        raise OptionError("`create_graph` must be False across ranks: their exchange of rows is not differentiable.")
    if step.level != "parameters" and (ranks.local or ranks.over == "tasks"):
        raise OptionError(
            f"level='features' requires Ranks('batch'), whose ranks have examples of the same tasks; got {ranks}."
        )
    for statistic in ("features", "kernel_traces") if ranks.over == "tasks" and not ranks.local else ():
        if found := requirements.readers[statistic]:
            raise OptionError(
                f"{' and '.join(found)} reads {statistic.replace('_', ' ')}, which ranks with different tasks do not "
                "exchange here. Use a learner, Ranks('tasks', local=True), or another homogenizer."
            )
    if isinstance(ranks.examples, list | tuple) and len(ranks.examples) != tasks:
        raise OptionError(
            f"`examples` must be a number or one number for each of the {tasks} tasks; got {len(ranks.examples)}."
        )
    if derivatives.graph.sharded:
        return FullyShardedRows(step, derivatives, communicator)
    if ranks.local:
        return LocalRows(step, derivatives, communicator)
    source = BatchRows if ranks.over == "batch" else TaskRows
    return source(step, derivatives, communicator)


def homogenize_groups(
    pipe: Pipeline, step: Step, per: Per, *, create_graph: bool, inspect: bool, nonfinite: Nonfinite | None
) -> tuple[StepReport, list[Callable[[], None]]]:
    """Compute the steps of all groups of parameters; no state is assigned. All ranks take the groups in the same order.

    A task that one group drops is dropped from all.

    Returns:
        The result for all parameters; the functions that assign the states of the groups and of the pipeline.
    """
    if per == "model":
        pending = pipe.compute(step, create_graph=create_graph, inspect=inspect, nonfinite=nonfinite)
        return pending.result, [pending.commit]
    if (nonfinite or pipe.nonfinite) == "drop":
        step = drop_nonfinite(step, ())
    else:
        require_finite_inputs(step, ())
    steps = {
        name: pipe.part(name).compute(
            replace(step, _jacobian=step.jacobian.select_parameters(members)), create_graph=create_graph,
            inspect=inspect, nonfinite="raise",
        )
        for name, members in group_names(step.jacobian.names, per).items()
    }  # fmt: skip
    results = {name: pending.result for name, pending in steps.items()}
    direction: Direction = {}
    measured: dict[str, Any] = {}
    for name, result in results.items():
        direction.update(result.direction)
        measured.update({f"{name}: {label}": numbers for label, numbers in result.measured.items()})
    direction = {name: direction[name] for name in step.jacobian.names}
    gramians = [result.gramian for result in results.values() if result.gramian is not None]
    gramian = torch.stack(gramians).sum(0) if len(gramians) == len(steps) else None
    unconverged = tuple(f"{name}: {label}" for name, result in results.items() for label in result.unconverged)
    first = next(iter(results.values()))

    def count_step() -> None:
        pipe.steps += 1

    report = StepReport(direction, first.keys, first.losses, None, gramian, (), measured, unconverged)
    return report, [*(pending.commit for pending in steps.values()), count_step]


def infinite_step(graph: LossGraph) -> ComputedStep:
    """Return a step with infinite gradients: the gradient scaler skips it and lowers its scale. No state changes."""
    heads = {id(leaf): leaf for leaves in graph.unshared_leaves for leaf in leaves}.values()
    direction = {name: _infinite(parameter) for name, parameter in graph.shared.items()}
    shared = [(graph.shared[name], gradient) for name, gradient in direction.items()]
    return ComputedStep(StepReport(direction, ()), shared, [(leaf, _infinite(leaf)) for leaf in heads])


def _infinite(leaf: Tensor) -> Tensor:
    return torch.full_like(leaf, torch.inf, requires_grad=False)


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

"""`backward` and `loss`: homogenized gradients of several losses, added to `.grad` or returned through autograd."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gradhomog.autograd import inputs
from gradhomog.autograd.derivatives import Derivatives, DirectDerivatives, FeatureDerivatives, FullyShardedDerivatives
from gradhomog.autograd.loss_graph import LossGraph
from gradhomog.autograd.loss_step import LossStep, StepOptions, begin_step
from gradhomog.autograd.optimizer_metric import OptimizerMetric
from gradhomog.autograd.row_source import LeafGradients, RowSource
from gradhomog.autograd.rows_over_ranks import BatchSource, FullyShardedSource, LocalSource, TasksSource
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.ranks.communicator import Communicator, GroupCommunicator, Ranks, communicate
from gradhomog.rows import Direction, all_finite
from gradhomog.step.nonfinite import Nonfinite, drop_nonfinite, require_finite_inputs
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step import Step
from gradhomog.uncompiled import uncompiled


@uncompiled
def backward(
    losses: inputs.Losses,
    pipe: Pipeline,
    *,
    parameters: inputs.Parameters | None = None,
    features: inputs.Features | None = None,
    level: inputs.Level = "parameters",
    per: inputs.Per = "model",
    heads: inputs.Heads = "own",
    domains: Sequence[str] | None = None,
    targets: Tensor | None = None,
    residuals: inputs.Residuals | None = None,
    scaler: torch.amp.GradScaler | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    memory: inputs.Memory = "auto",
    metric: Optimizer | None = None,
    measure: inputs.Measure | None = None,
    inspect: bool = False,
    group: Ranks | ProcessGroup | None = None,
) -> StepReport:
    """Accumulate homogenized gradients of several losses in `.grad`; replaces `sum(losses).backward()`.

    θ.grad += 1/N Σ_i (C J)_i with J_i = ∂L_i/∂θ for shared parameters θ;  φ_i.grad += ∂L_i/∂φ_i for the others.

    Args:
        losses: one scalar per task, in a tensor, a sequence, or a dict by the tasks' names (which are then `domains`).
            A task whose loss is None, or a constant without a graph, is absent: N excludes it, its head gets no
            gradient, and its state does not change. If a homogenizer such as `tracked` chooses tasks, those that it
            does not choose are absent too; `Pipeline.choose` returns the chosen ones before their losses are computed.
        pipe: a pipeline, created once before the loop, because it holds the homogenizers' states.
        parameters: the shared parameters: a module, its `parameters()` or `named_parameters()`, or a dict. By default
            the leaves that `features` depend on, or, without features, the leaves that two or more losses depend on. If
            a loss does not depend on a shared parameter, its row is zero there.
        features: the output of the shared part, which is the input of the heads; one tensor or several. The losses are
            differentiated w.r.t. it once, and the rows then require passes through the shared part only. Required by
            homogenizers that read features, by those that transform them (pass the result of `gradhomog.task_features`)
            and by `level="features"`. Losses must depend on the shared part only through it.
        level: `"parameters"`; or `"features"`: the rows are ∂L_i/∂z, and their homogenized mean is backpropagated
            through the shared part in one pass (an upper bound of the criterion: Sener and Koltun 2018, section 3.3).
        per: homogenize all parameters together (`"model"`), the parameters of each layer (`"layer"`, by name), each
            tensor (`"tensor"`), or groups by glob patterns over names. Each group has a separate state, within `pipe`,
            and across ranks separate messages.
        heads: `"own"`: each head gets the gradient of its loss; `"weighted"`: that gradient times weight/N, as if the
            weighted mean of the losses were differentiated.
        domains, targets: as in `Pipeline.combine`.
        residuals: for homogenizers that read traces of tangent kernels, such as `ntk`: one tensor per task, with its
            graph and of any shape, whose mean square is the loss; a sequence, or a dict with the keys of the losses.
            Others ignore them. The traces are those w.r.t. all shared parameters; they are computed only in the steps
            in which they are read, and keep the graph until then.
        scaler: the gradient scaler of a half-precision loop. Pass unscaled losses: gradients are computed with the
            scale, homogenizers receive them without it, and `.grad` is written with it, for `scaler.step`. If a row
            overflows, infinity is written to every `.grad`, with any `nonfinite` policy, so that the scaler skips the
            step; no state changes.
        create_graph: keep the graph of the written gradients. Every homogenizer must claim `differentiable`.
        retain_graph: keep the graph of the losses.
        memory: `"rows"`: keep N gradients. `"low"`: keep no row where homogenizers read norms or inner products only:
            the N passes run in lockstep through parts of the graph, and one more computes the direction; gradients are
            equal to rounding, but not those that intermediate tensors add up by `retain_grad()`. `"auto"`: `"low"` if
            the rows would fill more than half of the free memory, and `"low"` needs less than half of that; the logger
            `gradhomog` reports it. No effect across ranks, or if homogenizers read rows, with `per`,
            `nonfinite="drop"` or `create_graph`.
        metric: the optimizer of the shared parameters, such as Adam: norms, inner products and rows are those in the
            metric of its next step, see `OptimizerMetric`. No effect on pipelines that read losses only. Not with
            `level="features"`, nor with homogenizers that keep rows, such as `tracked`.
        measure: norms and inner products are those of the gradients w.r.t. these tensors, and not all parameters: one
            tensor or several, such as the output of a decoder, or a glob pattern over the names of shared parameters,
            such as `"decoder.conv_out.weight"`. Then one pass differentiates the weighted sum of the losses. For
            pipelines that read neither rows nor features.
        inspect: compute the Gramian for the result even if no homogenizer reads it.
        group: in a process group of several ranks how the rows are distributed; a plain group means
            `Ranks("batch", group)`. `parameters` is then required. Without a process group it has no effect.

    Returns:
        The result of the step: direction by name (the only output for tensors that are not leaves), weights, Gramian,
        cosines, measurements. If `.grad` was None, it shares memory with the direction, unless a scale was applied.

    Gradients are added to `.grad`, as by `Tensor.backward`. `gradhomog.accumulated` adds up the rows of several batches
    before they are homogenized; `gradhomog.loss` takes the same step in the `backward()` of a scalar. Frozen parameters
    and parameters that no loss depends on do not change.

    Raises:
        OptionError: a loss is not a scalar; no loss has a graph; no parameter is shared; a loss depends on shared
            parameters other than through the features; an option is invalid for the pipeline; a homogenizer
            that acts in the encoder, such as `isi`, is not attached to it (see `Pipeline.attached`); the process is one
            of several ranks, and `group` is None.
        RankError: another rank raised an error, or has other tasks, parameters or states.
        NonfiniteError, NotDifferentiableError, PluginRunError: as in `Pipeline.combine`; nothing was written.

    Cost: N backward passes; the graph is freed with the last. One pass in total if no homogenizer reads norms, inner
    products or rows (the plain mean, fixed weights, weights from losses or, with `features`, from the gradients w.r.t.
    them) and losses share no other leaf; with `measure` that pass, and N from the losses to these tensors; errors
    about NaN then cannot name the task. Memory: N gradients of the shared parameters, without a copy; with
    `memory="low"` one, and N of the largest part of the graph (see docs/decisions/0043-gramian-without-rows.md).

    >>> import torch, gradhomog
    >>> _ = torch.manual_seed(0)
    >>> encoder, heads = torch.nn.Linear(3, 4), torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(2))
    >>> z = encoder(torch.randn(5, 3))
    >>> losses = {"height": heads[0](z).square().mean(), "weight": (heads[1](z) - 1).square().mean()}
    >>> step = gradhomog.backward(losses, gradhomog.pipeline("pcgrad"), parameters=encoder, features=z)
    >>> step.cosines.shape, encoder.weight.grad.shape, heads[0].weight.grad.shape
    (torch.Size([2, 2]), torch.Size([4, 3]), torch.Size([1, 4]))
    """
    communicator = communicate(group, "batch")
    with communicator.raise_together():
        options = StepOptions(
            pipe, communicator, level, per, heads, inspect, memory, create_graph, metric=metric, measure=measure
        )
        step = begin_step(options, losses, parameters, features, domains, targets, residuals)
        factor = None if scaler is None else scaler_factor(scaler, step.graph)
        computed = compute_step(step, factor=factor or 1.0, scaled=factor is not None, retain_graph=retain_graph)
    return computed.write()


@uncompiled
def loss(
    losses: inputs.Losses,
    pipe: Pipeline,
    *,
    parameters: inputs.Parameters | None = None,
    features: inputs.Features | None = None,
    level: inputs.Level = "parameters",
    per: inputs.Per = "model",
    heads: inputs.Heads = "own",
    domains: Sequence[str] | None = None,
    targets: Tensor | None = None,
    residuals: inputs.Residuals | None = None,
    reduction: inputs.Reduction = "mean",
    metric: Optimizer | None = None,
    measure: inputs.Measure | None = None,
    inspect: bool = False,
    report: Callable[[StepReport], None] | None = None,
    group: Ranks | ProcessGroup | None = None,
) -> Tensor:
    """Return the mean of the losses, as a scalar whose `backward()` writes the gradients of `gradhomog.backward`.

    θ.grad += f/N Σ_i (C J)_i  and  φ_i.grad += f ∂L_i/∂φ_i,  f the incoming gradient: 1 for `loss.backward()`, 1/k for
    `(loss / k).backward()`, the scale for `scaler.scale(loss).backward()`. For `reduction="sum"` the sum of the losses,
    and θ.grad += f Σ_i (C J)_i.

    For trainers that call `loss.backward()` themselves. The gradients are returned through autograd, so hooks after
    accumulation (of data-parallel wrappers, of fused optimizers) run once; `Tensor.register_hook` runs on every task's
    gradient and on the direction.

    Args:
        losses, pipe, parameters, features, level, per, heads, domains, targets, residuals, metric, measure, inspect: as
            in `gradhomog.backward`; the state of the optimizer is read in `backward()`.
        reduction: `"mean"` or `"sum"`. The empty pipeline with `"sum"` computes the gradients of `sum(losses)`, which
            most multi-task code differentiates: learning rate and weight decay can stay. N is the number of tasks in
            the step or, if a homogenizer such as `tracked` keeps rows of earlier steps, of all present losses.
        report: called with the result of the step during `backward()`.
        group: as in `gradhomog.backward`; the value is the mean or sum of this rank's losses. Ranks exchange rows in
            `backward()`. In a model wrapped by `DistributedDataParallel` the gradients, which are then equal on all
            ranks, are averaged once more, unless its forward pass runs in `model.no_sync()`.

    Returns:
        A scalar. If gradients are disabled (`torch.no_grad`, as in validation), the mean or sum without a graph, after
        the validation of the losses only; homogenizers need not be attached, and `group` may be None.

    The result may be a term of a sum, `gradhomog.loss(...) + penalty(z)`: the gradients of other terms are added to the
    homogenized ones.

    The step is taken in `backward()`, once: it updates the homogenizers, the call of `loss` does not. An incoming
    gradient above 1 is interpreted as the scale of a gradient scaler: on overflow, infinity is written, so that the
    scaler skips the step. So do not multiply the result by a constant above 1 without a scaler, as NaN would not raise;
    and the scale of a scaler must stay above 1. Not differentiable twice: use `gradhomog.backward(create_graph=True)`.
    With `(loss / k).backward()` for each of k batches, each batch is homogenized separately; `gradhomog.accumulated`
    homogenizes their sum.

    Raises:
        OptionError: as in `gradhomog.backward`; from `backward()`: it was called twice, with a negative gradient, or
            with `create_graph=True`.
        NonfiniteError, PluginRunError: from `backward()`; nothing was written.

    Cost: as `gradhomog.backward`.

    >>> import torch, gradhomog
    >>> _ = torch.manual_seed(0)
    >>> encoder, heads = torch.nn.Linear(3, 4), torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(2))
    >>> z, pipe = encoder(torch.randn(5, 3)), gradhomog.pipeline("pcgrad")
    >>> total = gradhomog.loss([head(z).square().mean() for head in heads], pipe, parameters=encoder)
    >>> total.backward()
    >>> encoder.weight.grad.shape, heads[0].weight.grad.shape
    (torch.Size([4, 3]), torch.Size([1, 4]))
    """
    if not torch.is_grad_enabled():  # nothing is exchanged: one rank may evaluate alone, also without `group`
        return reduce_losses(inputs.task_losses(losses, graph=False).losses, reduction)
    communicator = communicate(group, "batch")
    with communicator.raise_together():
        options = StepOptions(
            pipe, communicator, level, per, heads, inspect, reduction=reduction, metric=metric, measure=measure
        )
        step = begin_step(options, losses, parameters, features, domains, targets, residuals)
    deferred = DeferredStep(communicator, step.graph.nodes, partial(compute_step, step), report)
    leaves = [leaf for some in (step.graph.shared.values(), *step.graph.unshared_leaves) for leaf in some]
    return deferred.as_loss(reduce_losses(step.given.losses, reduction), leaves)


def reduce_losses(losses: Sequence[Tensor], reduction: inputs.Reduction) -> Tensor:
    """Return the mean or sum of losses, without a graph."""
    values = torch.stack([entry.detach() for entry in losses])
    return values.sum() if reduction == "sum" else values.mean()


def scaler_factor(scaler: torch.amp.GradScaler, graph: LossGraph) -> float | None:
    """Return the current scale of a gradient scaler; None if it is disabled."""
    if not scaler.is_enabled():
        return None
    one = torch.ones((), device=next(iter(graph.shared.values())).device)
    return float(scaler.scale(one))  # the scaler creates its scale at the first call


@dataclass(frozen=True)
class ComputedStep:
    """A computed step, before gradients are written and states are assigned.

    Attributes:
        result: the result of the step.
        gradients: those of the shared parameters and of the heads, with the factor of the gradient scaler.
        commit: assigns the new states of all homogenizers.
    """

    result: StepReport
    gradients: LeafGradients
    commit: Callable[[], None]

    def write(self) -> StepReport:
        """Add the gradients to the `.grad` of leaves, and assign the states."""
        with torch.set_grad_enabled(any(gradient.requires_grad for _, gradient in self.gradients)):
            for leaf, gradient in self.gradients:
                if not leaf.is_leaf:
                    continue
                before = leaf.grad
                if before is not None:
                    if before.layout != torch.strided:
                        before = before.to_dense()  # of an embedding; from now on
                    leaf.grad = before + gradient if gradient.requires_grad else before.add_(gradient)
                elif not gradient.requires_grad and (gradient.stride(), gradient.dtype) != (leaf.stride(), leaf.dtype):
                    # With the strides and dtype of the leaf, which fused optimizers require.
                    leaf.grad = torch.empty_like(leaf, requires_grad=False).copy_(gradient)
                else:
                    leaf.grad = gradient
        self.commit()
        return self.result


def compute_step(
    step: LossStep, *, factor: float = 1.0, scaled: bool = False, retain_graph: bool = False
) -> ComputedStep:
    """Differentiate the losses and homogenize their gradients, without writing any.

    Args:
        factor: factor of all gradients, from a gradient scaler or an incoming gradient.
        scaled: True with a gradient scaler.
    """
    retain_graph |= step.kernel_traces is not None  # homogenizers may read traces after the rows
    return homogenize(step, make_derivatives(step.graph, step.options, factor, scaled, retain_graph))


def make_derivatives(
    graph: LossGraph, options: StepOptions, factor: float = 1.0, scaled: bool = False, retain_graph: bool = False,
    examples: Sequence[float] | None = None,
) -> Derivatives:  # fmt: skip
    """Return the derivatives of losses, whose gradients are computed on demand; arguments as in `compute_step`.

    `examples`: the number for each present task, instead of those of the rank.
    """
    if options.create_graph and graph.passes.compiled:
        raise OptionError(
            "create_graph=True requires second derivatives, but a part of the graph was computed by a torch.compile'd "
            "function, which has none. Compute the losses by the original module."
        )
    # One pass from loss to parameters is cheaper than two, so features are used only if gradients w.r.t. them are read.
    through_features = graph.features and (options.level == "features" or options.pipe.requirements.reads_features)
    kind = FeatureDerivatives if through_features else DirectDerivatives
    return (FullyShardedDerivatives if graph.sharded else kind)(
        graph, options.communicator.examples(graph.tasks.slots) if examples is None else examples, factor, scaled,
        options.create_graph, retain_graph,
    )  # fmt: skip


def homogenize(step: LossStep, derivatives: Derivatives) -> ComputedStep:
    """Homogenize the gradients of losses; the only step there is, of one process and of many.

    Raises:
        NonfiniteError, OptionError, PluginRunError, NotDifferentiableError: nothing was written, no state assigned.
    """
    options, graph = step.options, step.graph
    is_one = not isinstance(options.communicator, GroupCommunicator)
    source = (RowSource if is_one else _source_over_ranks(step))(step, derivatives)
    if options.metric is not None:
        derivatives.metric = OptimizerMetric.of_step(options.metric, graph.shared, options.pipe, options.inspect)
    try:
        record = step.with_absent_keys(source.make_step())
        result, commit = homogenize_groups(options, record, "raise" if derivatives.scaled else options.pipe.nonfinite)
        direction, unused = source.to_parameters(result.direction)
        direction = direction if derivatives.metric is None else derivatives.metric.unscale(direction)
    except NonfiniteError as error:
        if not derivatives.scaled:
            if source.written_before:
                error.add_note(source.written_before)
            raise
        source.overflow()
        return infinite_step(graph)
    rows = _number_of_rows(step, result)
    factor = derivatives.factor * rows
    gradients = used_gradients(direction, result, unused, graph.shared)
    gradients = [(leaf, gradient if factor == 1 else factor * gradient) for leaf, gradient in gradients]
    if rows > 1 and not derivatives.scaled and not all_finite([gradient for _, gradient in gradients]):
        raise NonfiniteError(
            f"the sum of the {rows} rows overflows, although their mean is finite. Use reduction='mean', or divide the "
            "losses by a constant. Nothing was written."
        )
    if direction is not result.direction or source.exchanged != "nothing":
        result = replace(result, direction=direction, exchanged=source.exchanged)
    factors = {key.slot: 1.0 for key in result.keys}
    if options.heads == "weighted":
        assert result.weights is not None  # by `StepOptions`
        factors = dict(zip(factors, (result.weights * rows / len(factors)).tolist(), strict=True))
    return ComputedStep(result, [*gradients, *source.head_gradients(factors)], commit)


def _number_of_rows(step: LossStep, result: StepReport) -> int:
    """Return the factor of the mean of the rows: their number for `reduction="sum"`."""
    if step.options.reduction == "mean":
        return 1
    # A homogenizer that chooses tasks returns the mean of the kept rows of all of them.
    return len(step.given.losses) if step.options.pipe.requirements.choosing else len(result.keys)


def used_gradients(
    direction: Direction, report: StepReport, unused: Collection[str], parameters: Mapping[str, Tensor]
) -> LeafGradients:
    """Return the parameters with their parts of the direction, without those that no loss depends on."""
    return [
        (parameters[name], gradient)
        for name, gradient in direction.items()
        # A homogenizer that replaces rows may have kept some from earlier steps.
        if name not in unused or (report.weights is None and bool(gradient.any()))
    ]


def _source_over_ranks(step: LossStep) -> type[RowSource]:
    """Return the source of the rows of several ranks, of which every one receives the same direction.

    Raises:
        OptionError: the homogenizer or the option that is not supported across ranks; `examples` is a list whose length
            is not the number of tasks.
    """
    options, tasks = step.options, step.graph.tasks.tasks
    ranks = options.communicator.ranks
    across = step.graph.sharded or (ranks.over == "tasks" and not ranks.local)
    if options.measure is not None and (across or not isinstance(options.measure, str)):
        raise OptionError(
            "across ranks `measure` must be a glob pattern over names of parameters, with Ranks('batch') and without "
            "fully_shard. For the output of a shared part pass features=z, level='features' instead."
        )
    ranks.check_pipeline(options.pipe)
    if options.create_graph:
        raise OptionError("`create_graph` must be False across ranks: their exchange of rows is not differentiable.")
    if options.level != "parameters" and (ranks.local or ranks.over == "tasks"):
        raise OptionError(
            f"level='features' requires Ranks('batch'), whose ranks have examples of the same tasks; got {ranks}."
        )
    for statistic in ("features", "kernel_traces") if ranks.over == "tasks" and not ranks.local else ():
        if found := options.pipe.requirements.readers[statistic]:
            raise OptionError(
                f"{' and '.join(found)} reads {statistic.replace('_', ' ')}, which ranks with different tasks do not "
                "exchange here. Use a learner, Ranks('tasks', local=True), or another homogenizer."
            )
    if isinstance(ranks.examples, list | tuple) and len(ranks.examples) != tasks:
        raise OptionError(
            f"`examples` must be a number or one number for each of the {tasks} tasks; got {len(ranks.examples)}."
        )
    if step.graph.sharded:
        return FullyShardedSource
    return LocalSource if ranks.local else BatchSource if ranks.over == "batch" else TasksSource


def homogenize_groups(options: StepOptions, step: Step, nonfinite: Nonfinite) -> tuple[StepReport, Callable[[], None]]:
    """Compute the steps of all groups of parameters; no state is assigned. All ranks take the groups in the same order.

    A task that one group drops is dropped from all.

    Returns:
        The result for all parameters; a function that assigns the states of the groups and of the pipeline.
    """
    pipe = options.pipe
    compute = partial(Pipeline.compute, create_graph=options.create_graph, inspect=options.inspect)
    if options.per == "model":
        pending = compute(pipe, step, nonfinite=nonfinite)
        return pending.result, pending.commit
    if nonfinite == "drop":
        step = drop_nonfinite(step, ())
    else:
        require_finite_inputs(step, ())
    steps = {
        name: compute(
            pipe.group(name), replace(step, _jacobian=step.jacobian.select_parameters(members)), nonfinite="raise"
        )
        for name, members in inputs.group_names(step.jacobian.names, options.per).items()
    }
    results = {name: pending.result for name, pending in steps.items()}
    found = dict(part for result in results.values() for part in result.direction.items())
    gramians = [result.gramian for result in results.values() if result.gramian is not None]
    first = next(iter(results.values()))
    report = StepReport(
        {name: found[name] for name in step.jacobian.names}, first.keys, first.losses, None,
        torch.stack(gramians).sum(0) if len(gramians) == len(steps) else None, (),
        {f"{name}: {label}": values for name, one in results.items() for label, values in one.measured.items()},
        tuple(f"{name}: {label}" for name, one in results.items() for label in one.unconverged),
    )  # fmt: skip

    def commit() -> None:
        for pending in steps.values():
            pending.commit()
        pipe.steps += 1

    return report, commit


def infinite_step(graph: LossGraph) -> ComputedStep:
    """Return a step with infinite gradients: the gradient scaler skips it and lowers its scale. No state changes."""
    heads = {id(leaf): leaf for leaves in graph.unshared_leaves for leaf in leaves}
    found = [(x, torch.full_like(x, torch.inf, requires_grad=False)) for x in (*graph.shared.values(), *heads.values())]
    direction = {name: infinite for name, (_, infinite) in zip(graph.shared, found, strict=False)}
    return ComputedStep(StepReport(direction, ()), found, lambda: None)


@dataclass
class DeferredStep:
    """A step, or the addition of a batch to one, in the backward pass of a scalar.

    Attributes:
        nodes: those of the losses' graph.
        compute: called with the incoming gradient, and as in `compute_step`; returns None if no step is taken. None
            after the call, so that the graph of the losses is freed.
        report: called with the result of the step.
    """

    communicator: Communicator
    nodes: Sequence[Any]
    compute: Callable[..., ComputedStep | None] | None
    report: Callable[[StepReport], None] | None

    def as_loss(self, value: Tensor, leaves: Iterable[Tensor]) -> Tensor:
        """Return a scalar with this value, a function of the leaves, whose `backward()` takes the step."""
        distinct = {id(leaf): leaf for leaf in leaves}
        result: Tensor = _HomogenizedLoss.apply(self, value, *distinct.values())  # type: ignore[no-untyped-call]
        return result


class _HomogenizedLoss(torch.autograd.Function):
    """The mean or sum of the losses as a function of the leaves that they depend on.

    The graph of the losses is not part of the graph of the result: the backward pass differentiates it separately, task
    by task, and returns one gradient per leaf.
    """

    @staticmethod
    def forward(ctx: Any, deferred: DeferredStep, value: Tensor, *leaves: Tensor) -> Tensor:
        ctx.deferred, ctx.leaves = deferred, leaves
        return value.clone()

    @staticmethod
    @uncompiled
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # `once_differentiable` raises only if `grad` itself has a graph
            raise OptionError(
                "gradhomog.loss is not differentiable twice, but its gradient was computed with create_graph=True, for "
                "example for a gradient penalty. Use gradhomog.backward(losses, pipe, create_graph=True), or "
                "differentiate the losses themselves: torch.autograd.grad(sum(losses), ..., create_graph=True)."
            )
        factor = float(grad)
        if factor < 0:
            raise OptionError(
                "the result of gradhomog.loss must be minimized; its negative was differentiated. Homogenizers do not "
                "support adversarial training, in which one player maximizes the losses."
            )
        if factor == 0:
            return (None, None, *(torch.zeros_like(leaf) for leaf in ctx.leaves))
        deferred: DeferredStep = ctx.deferred
        if deferred.compute is None:
            raise OptionError(
                "backward() of gradhomog.loss must be called once; it was called twice. Call gradhomog.loss again."
            )
        with torch.enable_grad(), deferred.communicator.raise_together():
            used_later = _is_graph_used_later(deferred.nodes)
            # An incoming gradient above 1 is interpreted as that of a gradient scaler.
            computed = deferred.compute(factor=factor, scaled=factor > 1, retain_graph=used_later)
        deferred.compute, deferred.nodes = None, ()  # frees the graph of the losses
        if computed is None:
            return (None,) * (2 + len(ctx.leaves))
        found: dict[int, Tensor] = {}
        for leaf, gradient in computed.gradients:
            found[id(leaf)] = found[id(leaf)] + gradient if id(leaf) in found else gradient
        if deferred.report is not None:
            deferred.report(computed.result)
        computed.commit()
        return (None, None, *(found.get(id(leaf)) for leaf in ctx.leaves))


def _is_graph_used_later(nodes: Iterable[Any]) -> bool:
    """True if the running backward pass keeps the graph, or differentiates a part of the losses' graph itself.

    The latter is the case for `gradhomog.loss(losses, ...) + penalty(z)`, where z is an activation. Leaves are not a
    part: their nodes receive the result.
    """
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    if keeps_graph is None or keeps_graph():  # the losses' graph can always be kept; PyTorch lacked the function before
        return True
    return any(node.next_functions and torch._C._will_engine_execute_node(node) for node in nodes)

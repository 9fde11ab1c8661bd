"""`backward`: compute homogenized gradients of several losses and accumulate them in `.grad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradhomog.autograd.apply import (
    ComputedStep,
    Heads,
    Level,
    Options,
    compute_step,
    feature_jacobian,
    write,
)
from gradhomog.autograd.batch import Features, LossLeaves, differentiate, find_leaves
from gradhomog.autograd.checks import check_attached, check_discovered_parameters, check_options, check_same_domains
from gradhomog.autograd.derivatives import FeatureDerivatives
from gradhomog.autograd.distributed.dispatch import check_ranks, compute_across_ranks
from gradhomog.autograd.distributed.mean_losses import numbers_of_examples
from gradhomog.autograd.inputs import Losses, Parameters
from gradhomog.autograd.kernel_traces import Residuals, kernel_trace_function
from gradhomog.autograd.lazy import LazyJacobian, reads_rows
from gradhomog.autograd.parameter_groups import Per, group_names
from gradhomog.autograd.select_losses import leaves_of_the_step, may_be_unused
from gradhomog.autograd.task_features import TaskFeatures
from gradhomog.ranks.collectives import Collectives, raise_on_all_ranks
from gradhomog.ranks.ranks import Ranks, resolve_ranks
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step import KernelTraces
from gradhomog.uncompiled import uncompiled


@uncompiled
def backward(
    losses: Losses,
    pipe: Pipeline,
    *,
    parameters: Parameters | None = None,
    features: Features | None = None,
    level: Level = "parameters",
    per: Per = "model",
    heads: Heads = "own",
    domains: Sequence[str] | None = None,
    targets: Tensor | None = None,
    residuals: Residuals | None = None,
    scaler: torch.amp.GradScaler | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    chunks: int = 1,
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
        chunks: to save memory, compute the rows in this many groups of parameters and keep none: norms and inner
            products require up to `chunks` times as many passes, the direction one more. No effect if homogenizers
            read rows, with `per`, with `nonfinite="drop"`, or if losses share a head.
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
    them) and losses share no other leaf; errors about NaN then cannot name the task. Memory: N gradients of the shared
    parameters, without a copy; 1/`chunks` of that.

    >>> import torch, gradhomog
    >>> _ = torch.manual_seed(0)
    >>> encoder, heads = torch.nn.Linear(3, 4), torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(2))
    >>> z = encoder(torch.randn(5, 3))
    >>> losses = {"height": heads[0](z).square().mean(), "weight": (heads[1](z) - 1).square().mean()}
    >>> step = gradhomog.backward(losses, gradhomog.pipeline("pcgrad"), parameters=encoder, features=z)
    >>> step.cosines.shape, encoder.weight.grad.shape, heads[0].weight.grad.shape
    (torch.Size([2, 2]), torch.Size([4, 3]), torch.Size([1, 4]))
    """
    ranks = resolve_ranks(group, "batch")
    collectives = None if ranks is None else Collectives(ranks)
    with raise_on_all_ranks(collectives):
        check_options(pipe, features, level, per, heads, chunks, create_graph)
        check_attached(pipe)
        factor = scaler_factor(scaler, losses)
        given = find_leaves(losses, parameters, features)
        loss_leaves, collectives = leaves_of_the_step(pipe, given, domains, collectives, group)
        if parameters is None:
            check_discovered_parameters(pipe, per, collectives)
        scaled = scaler is not None and scaler.is_enabled()
        traces = kernel_trace_function(residuals, loss_leaves, pipe)
        options = step_options(
            loss_leaves, features, domains, targets, level, per, heads, inspect, factor, scaled, traces, collectives
        )
        step = compute(pipe, loss_leaves, options, create_graph=create_graph, retain_graph=retain_graph, chunks=chunks)
    return write(step, heads)


def step_options(
    loss_leaves: LossLeaves, features: Features | None, domains: Sequence[str] | None, targets: Tensor | None,
    level: Level, per: Per, heads: Heads, inspect: bool, factor: float, scaled: bool, traces: KernelTraces | None,
    collectives: Collectives | None,
) -> Options:  # fmt: skip
    """Return the options of a step for the present tasks; `scaled`: a gradient scaler handles infinity."""
    tasks = loss_leaves.tasks
    if per != "model":
        group_names(list(loss_leaves.shared), per)  # raise its errors before computing gradients
    if isinstance(features, TaskFeatures):
        check_same_domains(features.domains, tuple(domains or tasks.names or ()))
    names = domains or tasks.names
    present = tasks.select_present(names, "domains")
    if collectives is not None and names:
        present = tuple(names)
    if targets is not None and len(targets) == tasks.tasks > len(tasks.slots):
        targets = targets[list(tasks.slots)]
    return Options(present, targets, level, per, heads, inspect, factor, scaled, traces, collectives)


def compute(
    pipe: Pipeline, loss_leaves: LossLeaves, options: Options, *, create_graph: bool = False,
    retain_graph: bool = False, chunks: int = 1,
) -> ComputedStep:  # fmt: skip
    """Compute the step of losses whose leaves are known, without writing gradients."""
    reads_features = pipeline_reads_features(pipe)
    # One pass from loss to parameters is cheaper than two, so features are used only if gradients w.r.t. them are read.
    batch = differentiate(
        loss_leaves, factor=options.factor, create_graph=create_graph,
        retain_graph=retain_graph or options.kernel_traces is not None,  # homogenizers may read traces after the rows
        through_features=reads_features or options.level == "features", return_features=reads_features,
        loss_weights=numbers_of_examples(loss_leaves.tasks.slots, options.collectives),
    )  # fmt: skip
    if options.collectives is not None:
        check_ranks(options.collectives.ranks, pipe, options, create_graph)
        return compute_across_ranks(pipe, batch, options, options.collectives)
    if options.level == "features":
        assert isinstance(batch.derivatives, FeatureDerivatives)  # by `through_features`
        return compute_step(pipe, batch, feature_jacobian(batch.derivatives), options)
    eager = reads_rows(pipe, options.per, options.scaled)
    unused = may_be_unused(pipe, loss_leaves.use_shared)
    jacobian = LazyJacobian(batch.derivatives, eager=eager, chunks=chunks, may_be_unused=unused)
    return compute_step(pipe, batch, jacobian, options)


def pipeline_reads_features(pipe: Pipeline) -> bool:
    """True if a homogenizer declares that it reads features, or transforms them and declares nothing."""
    reading = [member for member in pipe.members if "features" in member.needs]
    return any(member.declares_needs or member.homogenizer.overrides("transform") for member in reading)


def scaler_factor(scaler: torch.amp.GradScaler | None, losses: Losses) -> float:
    """Return the current scale of a gradient scaler; 1 without a scaler."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    entries = losses.values() if isinstance(losses, Mapping) else [losses] if isinstance(losses, Tensor) else losses
    device = next((loss.device for loss in entries if isinstance(loss, Tensor)), torch.device("cpu"))
    return float(scaler.scale(torch.ones((), device=device)))  # the scaler creates its scale at the first call

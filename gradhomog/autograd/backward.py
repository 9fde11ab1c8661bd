"""`backward`: compute homogenized gradients of several losses and accumulate them in `.grad`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gradhomog.autograd.homogenize import compute_step
from gradhomog.autograd.inputs import Features, Heads, Level, Losses, Memory, Parameters, Residuals, TaskLosses
from gradhomog.autograd.loss_step import StepOptions, begin_step
from gradhomog.autograd.parameter_groups import Per
from gradhomog.ranks.communicator import communicate
from gradhomog.ranks.ranks import Ranks
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
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
    memory: Memory = "auto",
    metric: Optimizer | None = None,
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
            equal to rounding. `"auto"`: `"low"` if the rows would fill more than half of the free memory, and `"low"`
            needs less than half of that; the logger `gradhomog` reports it. No effect across ranks, or if homogenizers
            read rows, with `per`, `nonfinite="drop"` or `create_graph`.
        metric: the optimizer of the shared parameters, such as Adam: norms, inner products and rows are those in the
            metric of its next step, see `OptimizerMetric`. No effect on pipelines that read losses only. Not with
            `level="features"`, nor with homogenizers that keep rows, such as `tracked`.
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
    parameters, without a copy; with `memory="low"` one, and N of the largest part of the graph (see
    docs/decisions/0043-gramian-without-rows.md).

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
        options = StepOptions(pipe, communicator, level, per, heads, inspect, memory, create_graph, metric=metric)
        step = begin_step(options, losses, parameters, features, domains, targets, residuals)
        factor = scaler_factor(scaler, step.given)
        computed = compute_step(step, factor=factor or 1.0, scaled=factor is not None, retain_graph=retain_graph)
    return computed.write()


def scaler_factor(scaler: torch.amp.GradScaler | None, tasks: TaskLosses) -> float | None:
    """Return the current scale of a gradient scaler; None without a scaler."""
    if scaler is None or not scaler.is_enabled():
        return None
    one = torch.ones((), device=tasks.losses[0].device)
    return float(scaler.scale(one))  # the scaler creates its scale at the first call

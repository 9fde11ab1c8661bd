"""`loss`: a scalar whose `backward()` computes homogenized gradients, for trainers that call `loss.backward()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gradhomog.autograd.backward import compute_step
from gradhomog.autograd.inputs import (
    Features,
    Heads,
    Level,
    Losses,
    Parameters,
    Per,
    Reduction,
    Residuals,
    task_losses,
)
from gradhomog.autograd.loss_step import LossStep, StepOptions, begin_step
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import Ranks, communicate
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.uncompiled import uncompiled

Report = Callable[[StepReport], None] | None
"""Called with the result of a step."""


@uncompiled
def loss(
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
    reduction: Reduction = "mean",
    metric: Optimizer | None = None,
    inspect: bool = False,
    report: Report = None,
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
        losses, pipe, parameters, features, level, per, heads, domains, targets, residuals, metric, inspect: as in
            `gradhomog.backward`; the state of the optimizer is read in `backward()`.
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
    reduce = torch.sum if reduction == "sum" else torch.mean
    if not torch.is_grad_enabled():  # nothing is exchanged: one rank may evaluate alone, also without `group`
        return reduce(torch.stack(task_losses(losses, graph=False).losses))
    communicator = communicate(group, "batch")
    with communicator.raise_together():
        options = StepOptions(pipe, communicator, level, per, heads, inspect, reduction=reduction, metric=metric)
        step = begin_step(options, losses, parameters, features, domains, targets, residuals)
    value = reduce(torch.stack([entry.detach() for entry in step.given.losses]))
    leaves = {id(leaf): leaf for some in (step.graph.shared.values(), *step.graph.unshared_leaves) for leaf in some}
    result: Tensor = _HomogenizedLoss.apply(step, report, value, *leaves.values())  # type: ignore[no-untyped-call]
    return result


class _HomogenizedLoss(torch.autograd.Function):
    """The mean or sum of the losses as a function of the leaves that they depend on.

    The graph of the losses is not part of the graph of the result: the backward pass differentiates it separately, task
    by task, and returns one gradient per leaf.
    """

    @staticmethod
    def forward(ctx: Any, step: LossStep, report: Report, value: Tensor, *leaves: Tensor) -> Tensor:
        ctx.step, ctx.report, ctx.leaves = step, report, leaves
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
            return (None, None, None, *(torch.zeros_like(leaf) for leaf in ctx.leaves))
        step: LossStep | None = ctx.step
        if step is None:
            raise OptionError(
                "backward() of gradhomog.loss must be called once; it was called twice. Call gradhomog.loss again."
            )
        with torch.enable_grad(), step.options.communicator.raise_together():
            used_later = _is_graph_used_later(step.graph.nodes)
            # An incoming gradient above 1 is interpreted as that of a gradient scaler.
            computed = compute_step(step, factor=factor, scaled=factor > 1, retain_graph=used_later)
        ctx.step = None  # frees the graph of the losses
        found: dict[int, Tensor] = {}
        for leaf, gradient in computed.gradients:
            found[id(leaf)] = found[id(leaf)] + gradient if id(leaf) in found else gradient
        if ctx.report is not None:
            ctx.report(computed.result)
        computed.commit()
        return (None, None, None, *(found.get(id(leaf)) for leaf in ctx.leaves))


def _is_graph_used_later(nodes: Iterable[Any]) -> bool:
    """True if the running backward pass keeps the graph, or differentiates a part of the losses' graph itself.

    The latter is the case for `gradhomog.loss(losses, ...) + penalty(z)`, where z is an activation. Leaves are not a
    part: their nodes receive the result.
    """
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    if keeps_graph is None or keeps_graph():  # the losses' graph can always be kept; PyTorch lacked the function before
        return True
    return any(node.next_functions and torch._C._will_engine_execute_node(node) for node in nodes)

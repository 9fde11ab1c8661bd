"""`loss`: a scalar whose `backward()` computes homogenized gradients, for trainers that call `loss.backward()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradhomog.autograd.apply import Heads, Level, Options
from gradhomog.autograd.backward import (
    check_attached,
    check_discovered_parameters,
    check_options,
    compute,
    step_options,
)
from gradhomog.autograd.batch import Features, LossLeaves, find_leaves
from gradhomog.autograd.groups import Per
from gradhomog.autograd.inputs import Losses, Parameters
from gradhomog.autograd.kernel_traces import Residuals, residual_traces
from gradhomog.autograd.select_losses import select_chosen
from gradhomog.errors import OptionError
from gradhomog.homogenization import Homogenization
from gradhomog.pipelines import Pipeline


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
    inspect: bool = False,
    report: Callable[[Homogenization], None] | None = None,
) -> Tensor:
    """Return the mean of the losses, as a scalar whose `backward()` writes the gradients of `gradhomog.backward`.

    θ.grad += f/N Σ_i (C J)_i  and  φ_i.grad += f ∂L_i/∂φ_i,  f the incoming gradient: 1 for `loss.backward()`, 1/k for
    `(loss / k).backward()`, the scale for `scaler.scale(loss).backward()`.

    For trainers that call `loss.backward()` themselves. The gradients are returned through autograd, so hooks after
    accumulation (of data-parallel wrappers, of fused optimizers) run once; `Tensor.register_hook` runs on every task's
    gradient and on the direction.

    Args:
        losses, pipe, parameters, features, level, per, heads, domains, targets, residuals, inspect: as in
            `gradhomog.backward`.
        report: called with the result of the step during `backward()`.

    Returns:
        A scalar. If gradients are disabled (`torch.no_grad`, as in validation), the mean without a graph.

    The step is taken in `backward()`, once: it updates the homogenizers, the call of `loss` does not. An incoming
    gradient above 1 is interpreted as the scale of a gradient scaler: on overflow, infinity is written, so that the
    scaler skips the step. Not differentiable twice: use `gradhomog.backward(create_graph=True)`. With
    `(loss / k).backward()` for each of k batches, each batch is homogenized separately; `gradhomog.accumulated`
    homogenizes their sum.

    Raises:
        OptionError: as in `gradhomog.backward`. NonfiniteError, PluginRunError: from `backward()`; nothing was written.

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
    check_options(pipe, features, level, per, heads)
    if not torch.is_grad_enabled():
        entries = losses.values() if isinstance(losses, Mapping) else losses
        values = [entry.detach().reshape(()) for entry in entries if entry is not None]
        if not values:
            raise OptionError("`losses` must contain at least one loss that is not None; got none.")
        return torch.stack(values).mean()
    check_attached(pipe)
    given = find_leaves(losses, parameters, features)
    loss_leaves = select_chosen(pipe, given, domains)
    if parameters is None:
        check_discovered_parameters(pipe, per)

    options = step_options(loss_leaves.tasks, features, domains, targets, level, per, heads, inspect, 1.0, False)
    options = replace(options, kernel_traces=residual_traces(residuals, loss_leaves, pipe))
    leaves = {id(leaf): leaf for unshared in loss_leaves.unshared_leaves for leaf in unshared}
    step = _StepOnBackward(pipe, loss_leaves, options, report, [*loss_leaves.shared.values(), *leaves.values()])
    value = torch.stack([entry.detach() for entry in given.tasks.losses]).mean()
    result: Tensor = _HomogenizedMean.apply(step, value, *step.leaves)  # type: ignore[no-untyped-call]
    return result


class _StepOnBackward:
    """The step that the backward pass of one `loss` takes."""

    def __init__(
        self, pipe: Pipeline, loss_leaves: LossLeaves, options: Options,
        report: Callable[[Homogenization], None] | None, leaves: Sequence[Tensor],
    ) -> None:  # fmt: skip
        self._pipe, self._options, self._report, self.leaves = pipe, options, report, leaves
        self._loss_leaves: LossLeaves | None = loss_leaves

    def gradients(self, factor: float) -> list[Tensor | None]:
        """Return `factor` times the homogenized gradient of each leaf, and assign the states."""
        if self._loss_leaves is None:
            raise OptionError(
                "backward() of gradhomog.loss must be called once; it was called twice. Call gradhomog.loss again."
            )
        step = compute(self._pipe, self._loss_leaves, replace(self._options, factor=factor, scaled=factor > 1))
        self._loss_leaves = None  # frees the graph of the losses
        self._options = replace(self._options, kernel_traces=None)
        found: dict[int, Tensor] = {}
        for leaf, gradient in (*step.shared, *step.unshared):
            found[id(leaf)] = found[id(leaf)] + gradient if id(leaf) in found else gradient
        if self._report is not None:
            self._report(step.result)
        step.commit()
        return [found.get(id(leaf)) for leaf in self.leaves]


class _HomogenizedMean(torch.autograd.Function):
    """The mean of the losses as a function of the leaves that they depend on.

    The graph of the losses is not part of the graph of the result: the backward pass differentiates it separately, task
    by task, and returns one gradient per leaf.
    """

    @staticmethod
    def forward(ctx: Any, step: _StepOnBackward, value: Tensor, *leaves: Tensor) -> Tensor:
        ctx.step = step
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        factor = float(grad)
        if factor == 0:
            return (None, None, *(torch.zeros_like(leaf) for leaf in ctx.step.leaves))
        with torch.enable_grad():
            return (None, None, *ctx.step.gradients(factor))

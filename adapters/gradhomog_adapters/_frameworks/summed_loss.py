"""The sum of several losses, as a scalar whose `backward()` writes homogenized gradients in the scale of that sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import gradhomog
from gradhomog import Homogenization, OptionError, Pipeline


def summed_loss(
    losses: Mapping[str, Tensor | None],
    pipe: Pipeline,
    parameters: Mapping[str, Tensor],
    report: Callable[[Homogenization], None],
) -> Tensor:
    """Return Σ_i L_i, a scalar; its `backward()` adds f Σ_i (C J)_i to `.grad` of the parameters.

    f is the incoming gradient and J_i = ∂L_i/∂θ, so that the empty pipeline computes the gradient of the sum. The step
    of the pipeline is the mean of the rows; it is multiplied by the number of its tasks, or of all given losses if a
    homogenizer keeps rows of earlier steps. That factor is applied to the direction, not to the incoming gradient,
    because `gradhomog.loss` treats an incoming gradient above 1 as the scale of a gradient scaler, whose overflow does
    not raise an error.

    Leaves of the graph that are not in `parameters`, such as collocation points, receive no gradient.

    Args:
        losses: one scalar per loss, by name; None or a constant without a graph for a loss that is absent in this step.
        pipe: the pipeline.
        parameters: all trainable parameters, by name.
        report: called with the result of the step during `backward()`.

    Raises:
        OptionError: as `gradhomog.loss`; or the incoming gradient is negative, because an adversary maximizes the sum.
        NonfiniteError, PluginRunError: from `backward()`, as `gradhomog.loss`.
    """
    value = torch.stack([loss.detach() for loss in losses.values() if loss is not None]).sum()
    if not torch.is_grad_enabled():
        return value
    step = _Step(losses, pipe, parameters, report)
    result: Tensor = _HomogenizedSum.apply(step, value, *step.leaves)  # type: ignore[no-untyped-call]
    return result


class _Step:
    """The step that the backward pass of one sum takes."""

    def __init__(
        self,
        losses: Mapping[str, Tensor | None],
        pipe: Pipeline,
        parameters: Mapping[str, Tensor],
        report: Callable[[Homogenization], None],
    ) -> None:
        self.leaves = [parameter for parameter in parameters.values() if parameter.requires_grad]
        self._report = report
        # A homogenizer that chooses tasks, such as `tracked`, returns the mean of the kept rows of all of them.
        self._kept = sum(loss is not None for loss in losses.values()) if pipe.stages.choosing else None
        self._tasks = 0
        self._mean = gradhomog.loss(losses, pipe, parameters=parameters, report=self._receive)

    def gradients(self, grad: Tensor) -> list[Tensor | None]:
        """Return the homogenized gradient of each leaf, times `grad` and the number of tasks."""
        if float(grad) < 0:
            raise OptionError(
                "a homogenized sum of losses must be minimized; its negative was differentiated. Homogenizers do not "
                "support adversarial training, in which one player maximizes the losses."
            )
        found = torch.autograd.grad(self._mean, self.leaves, grad.to(self._mean), allow_unused=True)
        return [None if gradient is None else self._tasks * gradient for gradient in found]

    def _receive(self, result: Homogenization) -> None:
        self._tasks = len(result.tasks) if self._kept is None else self._kept
        self._report(result)


class _HomogenizedSum(torch.autograd.Function):
    """The sum of the losses as a function of the parameters; its backward pass takes the step."""

    @staticmethod
    def forward(ctx: Any, step: _Step, value: Tensor, *leaves: Tensor) -> Tensor:
        ctx.step = step
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.step.gradients(grad))

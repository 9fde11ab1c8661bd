"""Recomputation of inner steps in the backward pass, so that memory does not grow with their number."""

from collections.abc import Callable
from typing import Any

import torch
import torchopt
from torch import Tensor
from torch.autograd.function import once_differentiable

InnerStep = Callable[..., tuple[dict[str, Tensor], Any]]
"""`step(k, adapted, state, fixed) -> adapted, state`: inner step k, as a function of the tensors that it changes, the
state of the inner optimizer, and the tensors that it only reads."""


class _Recomputed(torch.autograd.Function):
    """outputs = step(inputs), without a graph; the backward pass runs the step again, with a graph.

    The second run uses the same random numbers and the same autocast. `torch.utils.checkpoint` is not used: it keeps
    the gradient that a step computes, so that its memory grows with the number of steps
    (docs/decisions/0026-learners.md).
    """

    @staticmethod
    def forward(ctx: Any, step: Callable[..., Any], rerun: Callable[..., Any], *inputs: Tensor) -> Any:
        ctx.rerun, ctx.inputs = rerun, [x.detach() for x in inputs]
        ctx.set_materialize_grads(False)  # the gradient of a parameter that no loss depends on remains None
        ctx.device = inputs[0].device
        ctx.random = torch.get_rng_state(), torch.cuda.get_rng_state(ctx.device) if inputs[0].is_cuda else None
        ctx.autocast = torch.is_autocast_enabled(ctx.device.type), torch.get_autocast_dtype(ctx.device.type)
        return step(*ctx.inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        variables = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.inputs]
        (random, cuda_random), (enabled, dtype) = ctx.random, ctx.autocast
        with (
            torch.random.fork_rng([] if cuda_random is None else [ctx.device]), torch.enable_grad(),
            torch.autocast(ctx.device.type, dtype, enabled=enabled),
        ):  # fmt: skip
            torch.set_rng_state(random)
            if cuda_random is not None:
                torch.cuda.set_rng_state(cuda_random, ctx.device)
            outputs = ctx.rerun(*variables)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad and g is not None]
        by = [x for x in variables if x.requires_grad]
        gradients = iter(torch.autograd.grad([o for o, _ in pairs], by, [g for _, g in pairs], allow_unused=True))
        return None, None, *(next(gradients) if x.requires_grad else None for x in variables)


def recompute_step(step: InnerStep, buffers: dict[str, Tensor]) -> InnerStep:
    """Wrap an inner step so that it keeps only its arguments and a copy of the task's buffers.

    All tensors that are differentiated through must be arguments. Buffers are reset before the second run, so a layer
    that reads its own buffer reads the same values. Cost: one more forward and backward pass per step.
    """

    def recomputed_step(
        k: int, adapted: dict[str, Tensor], state: Any, fixed: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Any]:
        leaves, structure = torchopt.pytree.tree_flatten(state)
        n, m = len(adapted), len(adapted) + len(fixed)
        after, before = structure, {name: buffer.clone() for name, buffer in buffers.items()}

        def step_on_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
            nonlocal after
            adapted_after, state_after = step(
                k, dict(zip(adapted, tensors[:n], strict=True)),
                torchopt.pytree.tree_unflatten(structure, tensors[m:]), dict(zip(fixed, tensors[n:m], strict=True)),
            )  # fmt: skip
            state_leaves, after = torchopt.pytree.tree_flatten(state_after)
            return (*adapted_after.values(), *state_leaves)

        def rerun(*tensors: Tensor) -> tuple[Tensor, ...]:
            written = dict(buffers)
            buffers.update({name: buffer.clone() for name, buffer in before.items()})
            try:
                return step_on_tensors(*tensors)
            finally:
                buffers.update(written)

        inputs = (*adapted.values(), *fixed.values(), *leaves)
        outputs: Any = _Recomputed.apply(step_on_tensors, rerun, *inputs)  # type: ignore[no-untyped-call]
        return dict(zip(adapted, outputs[:n], strict=True)), torchopt.pytree.tree_unflatten(after, outputs[n:])

    return recomputed_step

"""Inner steps whose graph is built again in the backward pass: memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchopt
from torch import Tensor
from torch.autograd.function import once_differentiable

Step = Callable[..., tuple[dict[str, Tensor], Any]]
"""`step(k, adapted, state, held) -> adapted, state`: inner step k on the tensors that it changes, the state of the
inner optimizer, and the tensors that it reads only."""


class _Recomputed(torch.autograd.Function):
    """outputs = step(inputs), without a graph; the backward pass runs the step again, with one.

    The second time random numbers are drawn alike, under the same autocast. `torch.utils.checkpoint` around a step
    keeps the results of the gradient that the step itself takes, so that its memory grows with the number of steps
    (docs/decisions/0026-learners.md).
    """

    @staticmethod
    def forward(ctx: Any, step: Callable[..., Any], again: Callable[..., Any], *inputs: Tensor) -> Any:
        ctx.again, ctx.inputs = again, [x.detach() for x in inputs]
        ctx.device = inputs[0].device
        ctx.random = torch.get_rng_state(), torch.cuda.get_rng_state(ctx.device) if inputs[0].is_cuda else None
        ctx.autocast = torch.is_autocast_enabled(ctx.device.type), torch.get_autocast_dtype(ctx.device.type)
        return step(*ctx.inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        at = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.inputs]
        (random, cuda_random), (enabled, dtype) = ctx.random, ctx.autocast
        with (
            torch.random.fork_rng([] if cuda_random is None else [ctx.device]), torch.enable_grad(),
            torch.autocast(ctx.device.type, dtype, enabled=enabled),
        ):  # fmt: skip
            torch.set_rng_state(random)
            if cuda_random is not None:
                torch.cuda.set_rng_state(cuda_random, ctx.device)
            outputs = ctx.again(*at)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad and g is not None]
        by = [x for x in at if x.requires_grad]
        found = iter(torch.autograd.grad([o for o, _ in pairs], by, [g for _, g in pairs], allow_unused=True))
        return None, None, *(next(found) if x.requires_grad else None for x in at)


def recomputed(step: Step, buffers: dict[str, Tensor]) -> Step:
    """The same inner step, which keeps its arguments only, and a copy of the task's buffers before it.

    All that it differentiates through must be among its arguments. A layer that reads what it has written to a buffer
    reads the same the second time. Cost: one more forward and backward pass per step.
    """

    def run(k: int, adapted: dict[str, Tensor], state: Any, held: dict[str, Tensor]) -> tuple[dict[str, Tensor], Any]:
        leaves, structure = torchopt.pytree.tree_flatten(state)
        n, m = len(adapted), len(adapted) + len(held)
        after, before = structure, {name: buffer.clone() for name, buffer in buffers.items()}

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            nonlocal after
            moved, found = step(
                k, dict(zip(adapted, tensors[:n], strict=True)),
                torchopt.pytree.tree_unflatten(structure, tensors[m:]), dict(zip(held, tensors[n:m], strict=True)),
            )  # fmt: skip
            ends, after = torchopt.pytree.tree_flatten(found)
            return (*moved.values(), *ends)

        def again(*tensors: Tensor) -> tuple[Tensor, ...]:
            written = dict(buffers)
            buffers.update({name: buffer.clone() for name, buffer in before.items()})
            try:
                return flat(*tensors)
            finally:
                buffers.update(written)

        inputs = (*adapted.values(), *held.values(), *leaves)
        outputs: Any = _Recomputed.apply(flat, again, *inputs)  # type: ignore[no-untyped-call]
        return dict(zip(adapted, outputs[:n], strict=True)), torchopt.pytree.tree_unflatten(after, outputs[n:])

    return run

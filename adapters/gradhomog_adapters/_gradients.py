"""Gradients and Hessian-vector products of one task, with `torch.autograd` or with `torch.func`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Order = Literal["second", "first", "none"]
"""Differentiation of inner steps: `"second"`, through all of a step; `"first"`, with constant gradients; `"none"`."""

Loss = Callable[[dict[str, Tensor]], Tensor]
"""A scalar as a function of named tensors."""

Operator = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""A linear map of named tensors to named tensors of the same shapes."""


def detach_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detached tensors of the same values."""
    return {name: tensor.detach() for name, tensor in tensors.items()}


def zeros_for_missing(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """Replace missing gradients, of tensors that a loss does not depend on, by zeros."""
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, like, strict=True)]


def graph_nodes(root: Any, leaves: Iterable[Any] = ()) -> Iterator[Any]:
    """Yield the nodes of an autograd graph, each once, from a `grad_fn` up to, but without, some `leaves`."""
    seen, stack = {None, *leaves}, [root]
    while stack:
        if (node := stack.pop()) not in seen:
            seen.add(node)
            yield node
            stack += [following for following, _ in node.next_functions]


def autograd_gradient(loss: Loss, at: Mapping[str, Tensor], differentiable: bool) -> dict[str, Tensor]:
    """∇loss with `torch.autograd.grad`; detached if `differentiable` is false or grad mode is off."""
    differentiable = differentiable and torch.is_grad_enabled()
    # A tensor that does not require grad, such as the initial context of CAVIA, is still a variable of the step.
    point = {n: t if differentiable and t.requires_grad else t.detach().requires_grad_() for n, t in at.items()}
    with torch.enable_grad():
        found = torch.autograd.grad(
            loss(point), list(point.values()), create_graph=differentiable, allow_unused=True, materialize_grads=True
        )
    return dict(zip(point, found, strict=True))


def func_gradient(loss: Loss, at: Mapping[str, Tensor], differentiable: bool) -> dict[str, Tensor]:
    """∇loss with `torch.func.grad`."""
    found: dict[str, Tensor] = torch.func.grad(loss)(dict(at))
    return found if differentiable else detach_all(found)


def autograd_hessian(loss: Loss, at: Mapping[str, Tensor]) -> Operator:
    """v ↦ ∇²loss(at) v, by reverse mode over reverse mode.

    It is exact with normalization layers; forward mode over reverse mode is not.
    """
    point = {name: tensor.detach().requires_grad_() for name, tensor in at.items()}
    gradients = autograd_gradient(loss, point, True)
    dependent = {name: gradient for name, gradient in gradients.items() if gradient.requires_grad}

    def product(vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not dependent:
            return {name: torch.zeros_like(tensor) for name, tensor in point.items()}
        found = torch.autograd.grad(
            list(dependent.values()), list(point.values()), [vector[name] for name in dependent],
            retain_graph=True, allow_unused=True, materialize_grads=True,
        )  # fmt: skip
        return dict(zip(point, found, strict=True))

    return product


def func_hessian(loss: Loss, at: Mapping[str, Tensor]) -> Operator:
    """v ↦ ∇²loss(at) v with `torch.func`."""
    vjp: Any = torch.func.vjp(torch.func.grad(loss), dict(at))
    return lambda vector: dict(vjp[1](dict(vector))[0])


def differentiate(
    loss: Tensor, parameters: Mapping[str, Tensor], features: Sequence[Tensor] = (), retain_graph: bool = False
) -> tuple[dict[str, Tensor | None], Sequence[Tensor | None]]:
    """Gradients of a task's loss w.r.t. named parameters and features; None for tensors it does not depend on."""
    found = torch.autograd.grad(loss, [*parameters.values(), *features], retain_graph=retain_graph, allow_unused=True)
    return dict(zip(parameters, found, strict=False)), found[len(parameters) :]

"""Gradients and Hessian products of one task: on the graph of its forward pass, or by `torch.func` under `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Order = Literal["second", "first", "none"]
"""What of an inner step is differentiated: all of it; all but its gradient; nothing."""

Loss = Callable[[dict[str, Tensor]], Tensor]
"""A scalar as a function of named tensors."""

Operator = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""A linear map of named tensors onto named tensors of the same shapes."""


def constants(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values, outside every graph."""
    return {name: tensor.detach() for name, tensor in tensors.items()}


def zeros_for_missing(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """Gradients, with zeros where a loss does not depend on a tensor."""
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, like, strict=True)]


def gradient_on_graph(loss: Loss, at: Mapping[str, Tensor], differentiable: bool) -> dict[str, Tensor]:
    """∇loss by `torch.autograd.grad`; a constant where it need not be differentiable, or grad mode is off."""
    differentiable = differentiable and torch.is_grad_enabled()
    # A tensor that starts as a constant, such as the context of CAVIA, is a variable of the step all the same.
    point = {n: t if differentiable and t.requires_grad else t.detach().requires_grad_() for n, t in at.items()}
    with torch.enable_grad():
        found = torch.autograd.grad(
            loss(point), list(point.values()), create_graph=differentiable, allow_unused=True, materialize_grads=True
        )
    return dict(zip(point, found, strict=True))


def gradient_by_transforms(loss: Loss, at: Mapping[str, Tensor], differentiable: bool) -> dict[str, Tensor]:
    """∇loss by `torch.func.grad`."""
    found: dict[str, Tensor] = torch.func.grad(loss)(dict(at))
    return found if differentiable else constants(found)


def hessian_on_graph(loss: Loss, at: Mapping[str, Tensor]) -> Operator:
    """v ↦ ∇²loss(at) v, by differentiating the gradient once more: exact with normalization layers, where forward mode
    over reverse mode is not."""
    point = {name: tensor.detach().requires_grad_() for name, tensor in at.items()}
    gradients = gradient_on_graph(loss, point, True)
    moving = {name: gradient for name, gradient in gradients.items() if gradient.requires_grad}

    def product(vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not moving:
            return {name: torch.zeros_like(tensor) for name, tensor in point.items()}
        found = torch.autograd.grad(
            list(moving.values()), list(point.values()), [vector[name] for name in moving],
            retain_graph=True, allow_unused=True, materialize_grads=True,
        )  # fmt: skip
        return dict(zip(point, found, strict=True))

    return product


def hessian_by_transforms(loss: Loss, at: Mapping[str, Tensor]) -> Operator:
    """v ↦ ∇²loss(at) v by `torch.func`."""
    pulled: Any = torch.func.vjp(torch.func.grad(loss), dict(at))
    return lambda vector: dict(pulled[1](dict(vector))[0])

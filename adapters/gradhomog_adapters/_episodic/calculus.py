"""Derivatives of one task in two ways: on the graph of its forward pass, or by function transforms, under `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from gradhomog import TaskRow
from gradhomog_adapters._episodic.network import constants, filled, gradients

Point = TypeVar("Point")  # tensors in any nesting of dicts, lists and tuples

Loss = Callable[[dict[str, Tensor]], Tensor]
"""A scalar as a function of named tensors."""

Operator = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""A linear map of named tensors onto named tensors of the same shapes."""

Lead = Callable[[dict[str, Tensor]], tuple[Point, list[Tensor]]]
"""From the tensors that are differentiated by to what the head needs, and the query features of each forward pass."""

Score = Callable[[Point, list[Tensor]], tuple[Tensor, Tensor]]
"""From there, with features as the homogenizers left them, to the loss and the outputs of the last pass."""

Transform = Callable[[Tensor], list[Tensor]]
"""From query features to the taps: `[1, queries, features]` before the first `transform` stage and after each."""


class Calculus(Protocol):
    """How derivatives are taken; both ways give the same numbers up to rounding."""

    def leaf(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same values as new variables: nothing is differentiated through them."""

    def gradient(self, loss: Loss, at: dict[str, Tensor], differentiable: bool) -> dict[str, Tensor]:
        """∇ loss at a point, zeros where it does not depend on a tensor; a constant unless `differentiable`."""

    def hessian(self, loss: Loss, at: dict[str, Tensor]) -> Operator:
        """v ↦ ∇²loss(at) v, by differentiating the gradient once more: exact with normalization layers, where forward
        mode through reverse mode is not."""

    def row(self, lead: Lead[Point], score: Score[Point], at: dict[str, Tensor], transform: Transform) -> TaskRow:
        """The derivatives of score(lead(at)) by `at` and by the last pass's features at every tap, all from one
        backward pass."""


class OnGraph:
    """By `torch.autograd.grad`, one task at a time; its graph is freed as soon as the row is formed."""

    def leaf(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}

    def gradient(self, loss: Loss, at: dict[str, Tensor], differentiable: bool) -> dict[str, Tensor]:
        named, _ = gradients(loss(at), at, create_graph=differentiable)
        return filled(named, at)

    def hessian(self, loss: Loss, at: dict[str, Tensor]) -> Operator:
        at = self.leaf(at)
        slopes = self.gradient(loss, at, True)
        moving = {name: slope for name, slope in slopes.items() if slope.requires_grad}

        def product(vector: dict[str, Tensor]) -> dict[str, Tensor]:
            found = torch.autograd.grad(
                list(moving.values()), list(at.values()), [vector[name] for name in moving],
                retain_graph=True, allow_unused=True,
            )  # fmt: skip
            return filled(dict(zip(at, found, strict=True)), at)

        return product if moving else lambda vector: {name: torch.zeros_like(v) for name, v in vector.items()}

    def row(self, lead: Lead[Point], score: Score[Point], at: dict[str, Tensor], transform: Transform) -> TaskRow:
        point, passes = lead(at)
        # A frozen encoder: its features are where the derivatives end.
        passes = [f if f.requires_grad else f.detach().requires_grad_() for f in passes]
        taps = [transform(features) for features in passes]
        loss, outputs = score(point, [tap[-1][0] for tap in taps])
        # By the taps themselves: what is cut out of one is not what the next stage was given.
        named, cotangents = gradients(loss, at, taps[-1])
        return TaskRow(
            loss.detach(), named, outputs.detach(), [tap[0].detach() for tap in taps[-1]], [c[0] for c in cotangents]
        )


class ByTransforms:
    """By `torch.func`, so that `vmap` can be the outermost transform.

    Never the other way round: with affine batch, layer or instance normalization, the derivative of a `vmap` is wrong
    in silence (PyTorch 2.13). `tests/adapters/test_engines.py` holds this to account.
    """

    def leaf(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return constants(tensors)

    def gradient(self, loss: Loss, at: dict[str, Tensor], differentiable: bool) -> dict[str, Tensor]:
        found: dict[str, Tensor] = torch.func.grad(loss)(at)
        return found if differentiable else constants(found)

    def hessian(self, loss: Loss, at: dict[str, Tensor]) -> Operator:
        pulled: Any = torch.func.vjp(torch.func.grad(loss), at)
        return lambda vector: dict(pulled[1](vector)[0])

    def row(self, lead: Lead[Point], score: Score[Point], at: dict[str, Tensor], transform: Transform) -> TaskRow:
        led: Any = torch.func.vjp(lead, at)
        (point, passes), pull = led

        def total(point: Point, passes: list[Tensor]) -> tuple[Tensor, Tensor]:
            return score(point, [transform(features)[-1][0] for features in passes])

        scored: Any = torch.func.grad_and_value(total, argnums=(0, 1), has_aux=True)(point, passes)
        slopes, (loss, outputs) = scored
        return TaskRow(loss, pull(slopes)[0], outputs, [passes[-1]], [slopes[1][-1]])

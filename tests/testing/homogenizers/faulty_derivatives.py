"""Faulty derivatives: cut, NaN, or those of another step."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip


@fails("differentiable", "gradcheck with 2 tasks: Jacobian mismatch")
class DetachesWeights(Balance):
    """Weights are constants to it, though it claims to be differentiable."""

    def weights(self, norms):
        return super().weights(norms).detach()


@fails("differentiable", "gradcheck with 2 tasks: Jacobian mismatch")
class WeightsByItem(Balance):
    """A number taken out of the graph by .item()."""

    def weights(self, norms):
        return len(norms) * norms / norms.sum().item()


@fails("differentiable", "gradcheck with 4 tasks: Jacobian mismatch")
class CutsAfterFirstStep(Balance):
    """As soon as something has been learnt, what is new is cut."""

    def norms(self, evidence):
        norms = super().norms(evidence)
        return norms.detach() if self.usual else norms


@fails("differentiable", "gradgradcheck with 2 tasks")
class FirstOrderOnly(Balance):
    """A derivative whose own derivative is lost."""

    def weights(self, norms):
        return Once.apply(norms)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, norms):
        ctx.save_for_backward(norms)
        return len(norms) * norms / norms.sum()

    @staticmethod
    def backward(ctx, cotangent):
        (norms,) = (saved.detach() for saved in ctx.saved_tensors)
        total = norms.sum()
        return len(norms) * (cotangent / total - (cotangent.detach() @ norms) / total**2)


@fails("differentiable", "with a zero row a derivative is NaN")
class SlopeAtZero(Clip):
    """A root of squares: at a zero row its slope is infinite, times zero is NaN."""

    def lengths(self, blocks):
        return sum(block.double().reshape(len(block), -1).square().sum(dim=1) for block in blocks.values()).sqrt()


@fails("meta_gradient", "the derivative through the inner loop is .*; finite differences say")
class CutsDicts(Clip):
    """Differentiable as long as rows are a matrix."""

    def rows(self, jacobian):
        if isinstance(jacobian, Mapping):
            return super().rows({name: block.detach().requires_grad_() for name, block in jacobian.items()})
        return super().rows(jacobian)

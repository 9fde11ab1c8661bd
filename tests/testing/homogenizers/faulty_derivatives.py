"""Faulty derivatives: cut, NaN, or those of another step."""

from __future__ import annotations

import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Lag

WRONG = r"the derivative of the direction w.r.t. the {} is wrong in the {} step, of \d tasks: .* give [-\d.e]+\. "


@fails("differentiable", WRONG.format("rows", "first") + "Likely cause: `mix` detaches its rows")
class DetachesWeights(Balance):
    """Weights are constants, though it claims to be differentiable."""

    def weights(self, norms):
        return super().weights(norms).detach()


@fails("differentiable", WRONG.format("losses", "second") + "Likely cause: `mix` detaches its losses")
class DetachesLosses(Lag):
    """Reads losses as numbers."""

    def weights(self, losses, usual):
        return super().weights(losses.detach(), usual)


@fails("differentiable", WRONG.format("losses", "first") + "Likely cause: state is first set from this step's losses")
class StartsFromThisStep(Lag):
    """In the first step the usual loss is this step's, as a number."""

    def weights(self, losses, usual):
        return super().weights(losses, torch.where(usual > 0, usual, losses.detach()))


@fails("differentiable", WRONG.format("rows", "first") + "Likely cause: `rows` detaches its rows")
class ReplacesByNumbers(Clip):
    """Rows that are copied out of the graph."""

    def rows(self, step):
        return super().rows(step).detach()


@fails("differentiable", WRONG.format("rows", "first") + "Likely cause: a part of the computation is cut")
class WeightsByItem(Balance):
    """A number taken out of the graph by .item()."""

    def weights(self, norms):
        return len(norms) * norms / norms.sum().item()


@fails("differentiable", WRONG.format("rows", "second") + "Likely cause: `mix` detaches its rows")
class CutsAfterFirstStep(Balance):
    """Detached as soon as there is state."""

    def norms(self, step):
        norms = super().norms(step)
        return norms.detach() if self.usual else norms


@fails("differentiable", "the second derivative w.r.t. the rows is wrong .* Likely cause: a custom backward")
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
class RootAtZero(Clip):
    """A root of squares: at a zero row its derivative is infinite, times zero is NaN."""

    def lengths(self, jacobian):
        return sum(block.double().flatten(1).square().sum(dim=1) for block in jacobian.materialize().values()).sqrt()


@fails("meta_gradient", "the derivative through the inner loop is .*; finite differences give")
class CutsDicts(Clip):
    """Differentiable as long as rows are a matrix."""

    def rows(self, step):
        clipped = super().rows(step)
        return clipped if clipped.names == ("",) else clipped.detach()

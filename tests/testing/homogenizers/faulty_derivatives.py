"""Homogenizers with faulty derivatives: detached, NaN, or those of another step."""

from __future__ import annotations

import torch

from tests.testing.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, LossRatio

WRONG = r"the derivative of the direction w.r.t. the {} is wrong in the {} step, with \d tasks: .* give [-\d.e]+\. "


@fails(
    "differentiable", WRONG.format("rows", "first") + "Likely cause: `mix` detaches its rows .or norms, or Gramian",
    needs=("losses", "gramian"),
)  # fmt: skip
class DetachesTheGramian(LossRatio):
    """The weights keep the graph of the losses, but not that of the Gramian."""

    def mix(self, step):
        weights = step.losses + step.gramian().detach().diagonal()
        return len(weights) * weights / weights.sum()


@fails("differentiable", WRONG.format("losses", "second") + "Likely cause: `mix` detaches its losses")
class DetachesLosses(LossRatio):
    """Detaches the losses."""

    def weights(self, losses, average):
        return super().weights(losses.detach(), average)


@fails("differentiable", WRONG.format("losses", "first") + "Likely cause: state is initialized from this step's losses")
class InitializesFromThisStep(LossRatio):
    """In the first step the average loss is that of this step, detached."""

    def weights(self, losses, average):
        return super().weights(losses, torch.where(average > 0, average, losses.detach()))


@fails("differentiable", WRONG.format("rows", "first") + "Likely cause: `rows` detaches its rows")
class DetachesRows(Clip):
    """Detaches its rows."""

    def rows(self, step):
        return super().rows(step).detach()


@fails("differentiable", WRONG.format("rows", "first") + "Likely cause: a part of the computation is detached")
class WeightsByItem(Balance):
    """Reads a sum by .item()."""

    def weights(self, norms):
        return len(norms) * norms / norms.sum().item()


@fails("differentiable", WRONG.format("rows", "second") + "Likely cause: `mix` detaches its rows")
class DetachesAfterFirstStep(Balance):
    """Detaches norms from the second step on."""

    def norms(self, step):
        norms = super().norms(step)
        return norms.detach() if self.average else norms


@fails("differentiable", "the second derivative w.r.t. the rows is wrong .* Likely cause: a custom backward")
class FirstOrderOnly(Balance):
    """The first derivative is correct, but has no graph."""

    def weights(self, norms):
        return FirstOrderFunction.apply(norms)


class FirstOrderFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, norms):
        ctx.save_for_backward(norms)
        return len(norms) * norms / norms.sum()

    @staticmethod
    def backward(ctx, grad_output):
        (norms,) = (saved.detach() for saved in ctx.saved_tensors)
        total = norms.sum()
        return len(norms) * (grad_output / total - (grad_output.detach() @ norms) / total**2)


@fails("differentiable", "with a zero row a derivative is NaN")
class RootAtZero(Clip):
    """A root of squares: at a zero row its derivative is infinite, and infinity times zero is NaN."""

    def lengths(self, jacobian):
        return sum(block.double().flatten(1).square().sum(dim=1) for block in jacobian.materialize().values()).sqrt()


@fails("meta_gradient", "the derivative through the inner loop is .*; finite differences give")
class DetachesDicts(Clip):
    """Detaches rows in a dict, but not rows in one tensor."""

    def rows(self, step):
        clipped = super().rows(step)
        return clipped if clipped.names == ("",) else clipped.detach()

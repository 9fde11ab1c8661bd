"""Faulty rows: of another form, of other tasks too, and no derivatives."""

from __future__ import annotations

import torch

from tests.testing.learners.faults import fails
from tests.testing.learners.good import OneStep


@fails("rows_fit_parameters", "`head.bias` has .*, expected")
class AveragesBias(OneStep):
    """A number for a whole tensor, which broadcasts."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        return {**gradients, "head.bias": gradients["head.bias"].mean()}, grads


@fails("rows_fit_parameters", "one of each parameter.*'head.bias'.* not in both")
class LeavesOut(OneStep):
    """No entry for a parameter."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        del gradients["head.bias"]
        return gradients, grads


@fails("rows_fit_parameters", "`features` requires grad and so keeps the graph")
class KeepsGraph(OneStep):
    """Returns features with their graph."""

    def row(self, loss, outputs, taps, gradients, grads):
        row = super().row(loss, outputs, taps, gradients, grads)
        row.features = [tap[0] for tap in taps]
        return row


@fails("rows_fit_parameters", "gives 0 features and 0 feature_grads where nothing transforms; expected one")
class WithoutFeatures(OneStep):
    """No features for homogenizers that need them."""

    def row(self, loss, outputs, taps, gradients, grads):
        row = super().row(loss, outputs, taps, gradients, grads)
        row.features, row.feature_grads = [], []
        return row


@fails("rows_fit_parameters", "the gradient of `encoder.0.weight`: torch.float64; expected torch.float32")
class InFloat64(OneStep):
    """Gradients more precise than the parameters."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        return {name: gradient.double() for name, gradient in gradients.items()}, grads


@fails("rows_independent_of_batch", "the loss of task 0 after other batches: off by")
class StartsWhereTheLastEnded(OneStep):
    """An inner optimizer's momentum that is not begun anew for every task."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.momentum = {}

    def adapt(self, x, y, buffers):
        adapted = super().adapt(x, y, buffers)
        moved = {name: value + self.momentum.get(name, 0) for name, value in adapted.items()}
        for name, start in self.starting_point().items():
            self.momentum[name] = 0.5 * (adapted[name] - start).detach()
        return moved


@fails("rows_independent_of_batch", "the loss of task 0 after other batches: off by")
class DrawsAsItGoes(OneStep):
    """A generator of its own, from which the tasks draw one after the other."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.generator = torch.Generator().manual_seed(0)

    def adapt(self, x, y, buffers):
        noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
        return super().adapt(x + 0.1 * noise, y, buffers)


@fails("rows_independent_of_batch", "the row of task 0 in the opposite order, `encoder.0.weight`: off by")
class AveragesWithNeighbour(OneStep):
    """Means over neighbours in the batch, instead of one row per task."""

    def rows(self, batch):
        rows = super().rows(batch)
        rows.jacobian = {name: (block + block.roll(1, 0)) / 2 for name, block in rows.jacobian.items()}
        return rows


@fails("exact_rows", "the row of `encoder.0.weight` is not the derivative of the query loss")
class FirstOrder(OneStep):
    """Claims the whole derivative, and leaves out how the adapted parameters depend on the initial ones."""

    def adapt(self, x, y, buffers):
        adapted = super().adapt(x, y, buffers)
        return {name: start + (adapted[name] - start).detach() for name, start in self.starting_point().items()}


@fails("exact_rows", "the row of `head.bias` is not the derivative of the query loss: .* it is 0;")
class ForgetsOne(OneStep):
    """One tensor has no row, though the loss depends on it."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        return {**gradients, "head.bias": None}, grads


@fails("feature_grads", "the feature gradients before the transform are not the loss's derivative")
class SumsInsteadOfMean(OneStep):
    """Derivatives of the sum over the queries."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        return gradients, [len(one) * one for one in grads]


@fails("feature_grads", "the feature gradients before the transform are not the loss's derivative")
class OneForAllTaps(OneStep):
    """The gradient w.r.t. the output of the transform, for its input too."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        return gradients, [grads[-1]] * len(grads)


@fails("feature_grads", "there are 1 features and 1 feature_grads; expected two of each")
class LastTapOnly(OneStep):
    """Returns the input of the head, and nothing before it."""

    def row(self, loss, outputs, taps, gradients, grads):
        return super().row(loss, outputs, taps[-1:], gradients, grads[-1:])

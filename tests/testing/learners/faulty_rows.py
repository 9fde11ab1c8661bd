"""Faulty rows: of another form, of other tasks too, and no derivatives."""

from __future__ import annotations

import torch

from tests.testing.learners.faults import fails
from tests.testing.learners.good import OneStep


@fails("rows_fit_parameters", "`head.bias` has .*, expected")
class AveragesBias(OneStep):
    """A number for a whole tensor, which fits wherever it is written."""

    def differentiate(self, loss, taps):
        gradients, cotangents = super().differentiate(loss, taps)
        return {**gradients, "head.bias": gradients["head.bias"].mean()}, cotangents


@fails("rows_fit_parameters", "one of each parameter.*'head.bias'.* not in both")
class LeavesOut(OneStep):
    """No entry for a parameter, which may mean anything."""

    def differentiate(self, loss, taps):
        gradients, cotangents = super().differentiate(loss, taps)
        del gradients["head.bias"]
        return gradients, cotangents


@fails("rows_fit_parameters", "`features` requires grad and so holds on to the graph")
class KeepsGraph(OneStep):
    """Hands out features with all that they were computed from."""

    def row(self, loss, outputs, taps, gradients, cotangents):
        row = super().row(loss, outputs, taps, gradients, cotangents)
        row.features = [tap[0] for tap in taps]
        return row


@fails("rows_fit_parameters", "gives 0 features and 0 feature_cotangents where nothing transforms; expected one")
class WithoutFeatures(OneStep):
    """Nothing for those who learn from features."""

    def row(self, loss, outputs, taps, gradients, cotangents):
        row = super().row(loss, outputs, taps, gradients, cotangents)
        row.features, row.feature_cotangents = [], []
        return row


@fails("rows_fit_parameters", "the gradient of `encoder.0.weight`: torch.float64; expected torch.float32")
class InFloat64(OneStep):
    """Gradients more precise than the parameters."""

    def differentiate(self, loss, taps):
        gradients, cotangents = super().differentiate(loss, taps)
        return {name: gradient.double() for name, gradient in gradients.items()}, cotangents


@fails("rows_alone", "the loss of task 0 after other batches: off by")
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


@fails("rows_alone", "the loss of task 0 after other batches: off by")
class DrawsAsItGoes(OneStep):
    """A generator of its own, from which every task takes what comes next."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.generator = torch.Generator().manual_seed(0)

    def adapt(self, x, y, buffers):
        noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
        return super().adapt(x + 0.1 * noise, y, buffers)


@fails("rows_alone", "the row of task 0 in the opposite order, `encoder.0.weight`: off by")
class AveragesWithNeighbour(OneStep):
    """A mean over the batch, where homogenizers are to see each task."""

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
        gradients, cotangents = super().differentiate(loss, taps)
        return {**gradients, "head.bias": None}, cotangents


@fails("feature_cotangents", "the feature cotangents before the transform are not the loss's derivative")
class SumsInsteadOfMean(OneStep):
    """Derivatives of the sum over the queries."""

    def differentiate(self, loss, taps):
        gradients, cotangents = super().differentiate(loss, taps)
        return gradients, [len(one) * one for one in cotangents]


@fails("feature_cotangents", "the feature cotangents before the transform are not the loss's derivative")
class OneForAllTaps(OneStep):
    """The derivative by what came out of the transform, for what went in too."""

    def differentiate(self, loss, taps):
        gradients, cotangents = super().differentiate(loss, taps)
        return gradients, [cotangents[-1]] * len(cotangents)


@fails("feature_cotangents", "there are 1 features and 1 feature_cotangents; expected two of each")
class LastTapOnly(OneStep):
    """Hands out what the head saw, and nothing before it."""

    def row(self, loss, outputs, taps, gradients, cotangents):
        return super().row(loss, outputs, taps[-1:], gradients, cotangents[-1:])

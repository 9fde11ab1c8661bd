"""Learners with faulty rows: wrong shapes, dependence on other tasks, wrong derivatives."""

from __future__ import annotations

import torch

from tests.testing.faults import fails
from tests.testing.learners.good import OneStep


@fails("rows_fit_parameters", "`head.bias` has .*, expected")
class AveragesBias(OneStep):
    """A scalar gradient for a whole tensor, which broadcasts."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        return {**gradients, "head.bias": gradients["head.bias"].mean()}, grads


@fails("rows_fit_parameters", "one per parameter.*missing or unexpected: .*'head.bias'")
class OmitsGradient(OneStep):
    """No entry for a parameter."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        del gradients["head.bias"]
        return gradients, grads


@fails("rows_fit_parameters", "`features` requires grad and keeps the task's graph")
class KeepsGraph(OneStep):
    """Returns features with their graph."""

    def row(self, loss, outputs, taps, gradients, grads):
        row = super().row(loss, outputs, taps, gradients, grads)
        row.features = [tap[0] for tap in taps]
        return row


@fails("rows_fit_parameters", "`task_row` returns 0 features and 0 feature_grads; expected one of each")
class WithoutFeatures(OneStep):
    """Returns no features."""

    def row(self, loss, outputs, taps, gradients, grads):
        row = super().row(loss, outputs, taps, gradients, grads)
        row.features, row.feature_grads = [], []
        return row


@fails("rows_fit_parameters", "the gradient of `encoder.0.weight` has the dtype torch.float64; expected torch.float32")
class Float64Gradients(OneStep):
    """Gradients in float64 for float32 parameters."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        return {name: gradient.double() for name, gradient in gradients.items()}, grads


@fails("rows_independent_of_batch", "the loss of task 0 after other batches: off by")
class SharedGenerator(OneStep):
    """All tasks draw from one generator of the learner."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.generator = torch.Generator().manual_seed(0)

    def adapt(self, x, y, buffers):
        noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
        return super().adapt(x + 0.1 * noise, y, buffers)


@fails("rows_independent_of_batch", "the row of task 0 in reversed order, `encoder.0.weight`: off by")
class AveragesWithNeighbour(OneStep):
    """Averages the row of each task with that of a neighbour in the batch."""

    def rows(self, batch):
        rows = super().rows(batch)
        rows.jacobian = {name: (block + block.roll(1, 0)) / 2 for name, block in rows.jacobian.items()}
        return rows


@fails("exact_rows", "the row of `encoder.0.weight` is not the derivative of the query loss")
class FirstOrder(OneStep):
    """Claims exact rows, but ignores that the adapted parameters depend on the initial ones."""

    def adapt(self, x, y, buffers):
        adapted = super().adapt(x, y, buffers)
        return {name: start + (adapted[name] - start).detach() for name, start in self.starting_point().items()}


@fails("feature_grads", "`feature_grads` before the transform are not the derivative of the loss")
class SameGradientForAllTaps(OneStep):
    """Returns the gradient w.r.t. the output of `transform` for its input too."""

    def differentiate(self, loss, taps):
        gradients, grads = super().differentiate(loss, taps)
        return gradients, [grads[-1]] * len(grads)


@fails("feature_grads", "`rows` returns 1 features and 1 feature_grads; expected two of each")
class LastTapOnly(OneStep):
    """Returns only the last features, the input of the head."""

    def row(self, loss, outputs, taps, gradients, grads):
        return super().row(loss, outputs, taps[-1:], gradients, grads[-1:])

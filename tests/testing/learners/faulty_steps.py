"""Faulty steps: not on the mean, without the homogenizers, on NaN."""

from __future__ import annotations

import torch

from tests.testing.learners.faults import fails
from tests.testing.learners.good import OneStep


@fails("steps_on_mean", "after 1 steps of Adam: off by")
class AddsToOldGradients(OneStep):
    """Leaves it to the caller to clear `.grad`."""

    def step(self, batch, outer):
        old = [parameter.grad.clone() for parameter in self.parameters()]

        class Adding:
            def zero_grad(self):
                outer.zero_grad()

            def step(inner):
                for parameter, gradient in zip(self.parameters(), old, strict=True):
                    parameter.grad += gradient
                outer.step()

        return super().step(batch, Adding())


@fails("steps_on_mean", "after 1 steps of Adam: off by")
class StepsTwice(OneStep):
    """Twice the step that was asked for."""

    def step(self, batch, outer):
        report = super().step(batch, outer)
        outer.step()
        return report


@fails("steps_on_mean", "the losses in the step's report: off by")
class ReportsSupportLoss(OneStep):
    """The loss of another set than that of the row."""

    def step(self, batch, outer):
        report = super().step(batch, outer)
        report.losses = report.losses / 2
        return report


@fails("steps_homogenized", "after 1 steps of Adam: off by")
class WithoutHomogenizers(OneStep):
    """Ignores the argument."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, None, **options)


@fails("steps_homogenized", "after [23] steps of Adam: off by")
class ForgetsBetweenSteps(OneStep):
    """Homogenizers are reset after every step."""

    def step(self, batch, outer):
        state = self.homogenizers.state_dict()
        report = super().step(batch, outer)
        self.homogenizers.load_state_dict(state)
        return report


class Repairs(OneStep):
    """NaN becomes zero."""

    def task_row(self, task, key):
        row = super().task_row(task, key)
        row.loss = row.loss.nan_to_num()
        row.gradients = {name: gradient.nan_to_num() for name, gradient in row.gradients.items()}
        row.feature_grads = [gradient.nan_to_num() for gradient in row.feature_grads]
        return row


fails("nonfinite_reported", "a step on a task with NaN in `support_x` is taken, without an error")(Repairs)


@fails("nonfinite_reported", "FloatingPointError: the inner loop diverged")
class RaisesItsOwn(OneStep):
    """Raises an error of its own, which no policy handles."""

    def task_row(self, task, key):
        row = super().task_row(task, key)
        if not torch.isfinite(row.loss):
            raise FloatingPointError("the inner loop diverged")
        return row

"""Learners with faulty steps: not along the mean, without homogenizers, or with NaN."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.testing.faults import fails
from tests.testing.learners.good import OneStep


@fails("steps_on_mean", "after 1 steps of Adam: off by")
class AddsToOldGradients(OneStep):
    """Adds the direction to old values of `.grad`."""

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


@fails("steps_on_mean", "the losses in the step's report: off by")
class ReportsOtherLosses(OneStep):
    """Reports other losses than those of the rows."""

    def step(self, batch, outer):
        report = super().step(batch, outer)
        return replace(report, losses=report.losses / 2)


@fails("steps_homogenized", "after 1 steps of Adam: off by")
class IgnoresHomogenizers(OneStep):
    """Ignores the argument `homogenizers`."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, None, **options)


@fails("steps_homogenized", "after [23] steps of Adam: off by")
class ResetsHomogenizers(OneStep):
    """Resets the homogenizers' state after every step."""

    def step(self, batch, outer):
        state = self.homogenizers.state_dict()
        report = super().step(batch, outer)
        self.homogenizers.load_state_dict(state)
        return report


class ReplacesNaN(OneStep):
    """Replaces NaN by zero."""

    def task_row(self, task, key):
        row = super().task_row(task, key)
        row.loss = row.loss.nan_to_num()
        row.gradients = {name: gradient.nan_to_num() for name, gradient in row.gradients.items()}
        row.feature_grads = [gradient.nan_to_num() for gradient in row.feature_grads]
        return row


fails("nonfinite_reported", "a step with NaN in `support_x` does not raise")(ReplacesNaN)


@fails("nonfinite_reported", "FloatingPointError: the inner loop diverged")
class RaisesFloatingPointError(OneStep):
    """Raises another error than `NonfiniteError`, which no policy handles."""

    def task_row(self, task, key):
        row = super().task_row(task, key)
        if not torch.isfinite(row.loss):
            raise FloatingPointError("the inner loop diverged")
        return row

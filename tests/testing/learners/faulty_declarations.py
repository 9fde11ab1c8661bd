"""Learners with faulty documentation, options, network requirements or types of tasks."""

from __future__ import annotations

from typing import Any

import torch

from gradhomog import OptionError
from tests.testing.learners.faults import fails
from tests.testing.learners.good import OneStep


@fails("documented", "`reference` is empty: give the source", reference="")
class NoReference(OneStep):
    """No source; `rate` and `loss` as for the good learner."""


@fails("documented", "does not describe these options: rate, loss")
class UndocumentedOptions(OneStep):
    """Undocumented options."""


@fails("options_validated", "option `rate` has no type annotation, so values of a wrong type cannot be rejected")
class NoAnnotation(OneStep):
    """An option without annotation, which accepts any value."""

    def __init__(self, encoder, head, homogenizers=None, *, rate=0.1, loss: Any = None):
        super().__init__(encoder, head, homogenizers, rate=rate, loss=loss)


@fails("computes_rows", "the learner computes no rows: AttributeError: 'Sequential' object has no attribute 'blocks'")
class RequiresSpecificEncoder(OneStep):
    """Depends on the structure of its author's encoder."""

    def task_row(self, task, key):
        self.encoder.blocks.requires_grad_()
        return super().task_row(task, key)


@fails("computes_rows", "the learner computes no rows: RuntimeError: .*should be the same")
class RequiresFloat32(OneStep):
    """Converts inputs to float32."""

    def encode(self, parameters, buffers, x):
        return super().encode(parameters, buffers, x.float())


@fails(
    "task_types_supported_or_rejected",
    "regression is rejected by IndexError: .*: raise a GradhomogError whose message",
)
class IndexesByTargets(OneStep):
    """Uses targets as indices, which fails for targets of regression."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.loss = lambda outputs, targets: -outputs.log_softmax(1)[torch.arange(len(targets)), targets].mean()


@fails("task_types_supported_or_rejected", "regression is rejected by OptionError: not supported: raise")
class VagueRejection(OneStep):
    """Rejects regression by an error without the type of task."""

    def task_row(self, task, key):
        if task.query_y.is_floating_point():
            raise OptionError("not supported")
        return super().task_row(task, key)


@fails(
    "task_types_supported_or_rejected",
    "classification: `evaluate` returns mse, 2 scores for 2 tasks; expected accuracy",
)
class WrongMetric(OneStep):
    """Reports the metric of regression for every type of task."""

    def evaluate(self, tasks):
        result = super().evaluate(tasks)
        result.metric = "mse"
        return result

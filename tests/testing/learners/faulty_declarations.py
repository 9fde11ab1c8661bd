"""Faulty declarations and types of tasks."""

from __future__ import annotations

from typing import Any

import torch

from gradhomog import OptionError
from tests.testing.learners.faults import fails
from tests.testing.learners.good import OneStep


@fails("documented", "`reference` is empty: give the source", reference="")
class NoReference(OneStep):
    """No source; `rate` and `loss` as of the good one."""


@fails("documented", "does not describe these options: rate, loss")
class UndocumentedOptions(OneStep):
    """Undocumented options."""


@fails("options_validated", "option `rate` has no type annotation, so a value of a wrong type cannot be refused")
class NoAnnotation(OneStep):
    """Accepts everything."""

    def __init__(self, encoder, head, homogenizers=None, *, rate=0.1, loss: Any = None):
        super().__init__(encoder, head, homogenizers, rate=rate, loss=loss)


@fails("forms_rows", "it forms no rows: AttributeError: 'Sequential' object has no attribute 'blocks'")
class ForItsOwnNetworkOnly(OneStep):
    """Depends on the structure of its author's encoder."""

    def task_row(self, task, key):
        self.encoder.blocks.requires_grad_()
        return super().task_row(task, key)


@fails("forms_rows", "it forms no rows: RuntimeError: .*should be the same")
class ForFloat32Only(OneStep):
    """Makes its inputs what they usually are."""

    def encode(self, parameters, buffers, x):
        return super().encode(parameters, buffers, x.float())


@fails("serves_or_refuses", "regression is refused by IndexError: .*: raise a GradhomogError with the message that")
class TakesTargetsForClasses(OneStep):
    """Indexes by classes, so targets of regression fail."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.loss = lambda outputs, targets: -outputs.log_softmax(1)[torch.arange(len(targets)), targets].mean()


@fails("serves_or_refuses", "regression is refused by OptionError: not supported: raise")
class RefusesWithoutWords(OneStep):
    """Refuses without the type of task."""

    def task_row(self, task, key):
        if task.query_y.is_floating_point():
            raise OptionError("not supported")
        return super().task_row(task, key)


@fails("serves_or_refuses", "classification is scored by mse, 2 scores of 2 tasks; expected accuracy")
class ScoresByError(OneStep):
    """One number for all, whatever the tasks are."""

    def evaluate(self, tasks):
        result = super().evaluate(tasks)
        result.metric = "mse"
        return result

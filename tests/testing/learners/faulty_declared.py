"""Faulty in what they say about themselves, in what options they take, and in what tasks."""

from __future__ import annotations

from typing import Any

import torch

from gradhomog import OptionError
from tests.testing.learners.faults import fails
from tests.testing.learners.good import OneStep


@fails("documented", "`reference` is empty: say where it comes from", reference="")
class NoReference(OneStep):
    """Nobody can look it up; `rate` and `loss` as of the good one."""


@fails("documented", "does not say what these options do: rate, loss")
class UndocumentedOptions(OneStep):
    """Options are left to be guessed."""


@fails("options_validated", "option `rate`=nan is accepted: raise gradhomog.OptionError that names it")
class AcceptsNaN(OneStep):
    """Asks whether the rate is out of range, which NaN never is."""

    def __init__(self, encoder, head, homogenizers=None, *, rate: float = 0.1, loss: Any = None):
        if rate <= 0:
            raise OptionError(f"`rate` must be positive; got {rate!r}.")
        super().__init__(encoder, head, homogenizers, loss=loss)
        self.rate = rate


@fails("forms_rows", "it forms no rows: AttributeError: 'Sequential' object has no attribute 'blocks'")
class ForItsOwnNetworkOnly(OneStep):
    """Knows how the encoder of its author is built, and needs it so."""

    def task_row(self, task, key):
        self.encoder.blocks.requires_grad_()
        return super().task_row(task, key)


@fails("forms_rows", "it forms no rows: RuntimeError: .*should be the same")
class ForFloat32Only(OneStep):
    """Makes its inputs what they usually are."""

    def encode(self, parameters, buffers, x):
        return super().encode(parameters, buffers, x.float())


@fails("serves_or_refuses", r"regression is refused by IndexError, “.*”: raise a GradhomogError that says")
class TakesTargetsForClasses(OneStep):
    """Looks classes up, and has never seen a target that is none."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.loss = lambda outputs, targets: -outputs.log_softmax(1)[torch.arange(len(targets)), targets].mean()


@fails("serves_or_refuses", "regression is refused by OptionError, “not supported”")
class RefusesWithoutWords(OneStep):
    """Refuses, and does not say what."""

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

"""Learners with faulty documentation, options, network requirements or types of tasks."""

from __future__ import annotations

from gradhomog import OptionError
from tests.testing.faults import fails
from tests.testing.learners.good import OneStep


@fails("computes_rows", "the learner computes no rows: RuntimeError: .*should be the same")
class RequiresFloat32(OneStep):
    """Converts inputs to float32."""

    def encode(self, parameters, buffers, x):
        return super().encode(parameters, buffers, x.float())


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

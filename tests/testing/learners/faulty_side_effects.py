"""Learners with side effects of rows, of meta-test, or of an error."""

from __future__ import annotations

import torch

from gradhomog import TaskRow
from tests.testing.faults import fails
from tests.testing.learners.good import OneStep


@fails("no_side_effects", "after `rows`, these have changed: the buffer `encoder.1.running_mean`")
@fails("batch_norm", "the buffer `encoder.1.running_mean` after three steps: not exactly equal")
class WritesStatistics(OneStep):
    """Runs the modules with their own buffers."""

    def buffers(self):
        return {}


@fails("no_side_effects", "after `rows`, these have changed: `.grad` of `encoder.0.weight`")
class LeavesGradients(OneStep):
    """Differentiates by `backward`."""

    def differentiate(self, loss, taps):
        loss.backward(retain_graph=True)
        return super().differentiate(loss, taps)


@fails("no_side_effects", "after `evaluate`, these have changed: the modes of the encoder")
class StaysInEvaluationMode(OneStep):
    """Sets the encoder to evaluation mode and does not restore it."""

    def adapted_outputs(self, support_x, support_y, query_x):
        outputs = super().adapted_outputs(support_x, support_y, query_x)
        self.mode = lambda training: torch.enable_grad()
        self.encoder.eval()
        return outputs


@fails("no_side_effects", "after `rows`, these have changed: the hooks and attributes of the encoder")
class LeavesHooks(OneStep):
    """Registers a hook in every forward pass and does not remove it."""

    def encode(self, parameters, buffers, x):
        self.encoder.register_forward_hook(ignore)
        return super().encode(parameters, buffers, x)


def ignore(module, inputs, features):
    """A hook without effect."""


@fails("no_side_effects", "after `rows`, these have changed: the global generator of torch")
class SeedsTorch(OneStep):
    """Seeds the global generator for reproducibility."""

    def adapt(self, x, y, buffers):
        torch.manual_seed(0)
        return super().adapt(x, y, buffers)


@fails("no_side_effects", "the tasks' tensors after `rows`: not exactly equal")
class CentresInPlace(OneStep):
    """Subtracts the mean from the caller's images in place."""

    def encode(self, parameters, buffers, x):
        return super().encode(parameters, buffers, x.sub_(x.mean()))


@fails(
    "restored_after_failure",
    r"after the \w+ raised at call \d of a step of two tasks, these have changed: the parameter",
)
class ScalesInPlace(OneStep):
    """Doubles a parameter in place and restores it only without an error."""

    def task_row(self, task, key):
        weight = self.parameters()[0]
        weight.data.mul_(2)
        row = super().task_row(task, key)
        weight.data.div_(2)
        return row


@fails("restored_after_failure", "after the encoder raised at call 1 .*: the step does not raise")
class SwallowsErrors(OneStep):
    """Replaces the row of a failed task by zeros."""

    def task_row(self, task, key):
        try:
            return super().task_row(task, key)
        except Exception:
            zeros = {name: torch.zeros_like(value) for name, value in self.named_parameters().items()}
            features = [task.query_x.new_zeros(len(task.query_x), 4)]
            return TaskRow(task.query_x.new_zeros(()), zeros, task.query_x.new_zeros(9, 3), features, features)


@fails("restored_after_failure", "the next losses after the encoder raised .*: not exactly equal")
class KeepsRunningFlag(OneStep):
    """Sets a flag while the encoder runs and does not reset it after an error."""

    running = False

    def encode(self, parameters, buffers, x):
        scale = 2 if self.running else 1
        self.running = True
        features = super().encode(parameters, buffers, scale * x)
        self.running = False
        return features


@fails(
    "restored_after_failure",
    "the step raises RuntimeError without the original error as its cause: something went wrong",
)
class HidesCause(OneStep):
    """Raises another error, without the original one as its cause."""

    def task_row(self, task, key):
        failed = False
        try:
            return super().task_row(task, key)
        except Exception:
            failed = True
        raise RuntimeError("something went wrong" if failed else "")

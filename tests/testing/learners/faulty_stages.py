"""Learners with faulty calls of homogenizers: late, missing, without effect, or at meta-test."""

from __future__ import annotations

import torch
from torch import nn

from gradhomog import TaskKey
from tests.testing.faults import fails
from tests.testing.learners.good import OneStep


@fails("begin_before_encoder", "inputs before the first `homogenizers.begin`")
class EncodesBeforeBegin(OneStep):
    """Runs the encoder on the support set before `begin`, to read the features' shape."""

    def task_row(self, task, key):
        self.encode(self.starting_point(), self.buffers(), task.support_x)
        return super().task_row(task, key)


@fails("begin_before_encoder", "query inputs of task 0 after")
class EncodesTogether(OneStep):
    """Support and query inputs in one pass, for speed."""

    def task_row(self, task, key):
        self.queries = task.query_x
        return super().task_row(task, key)

    def adapt(self, x, y, buffers):
        both = self.encode(self.starting_point(), buffers, torch.cat([x, getattr(self, "queries", x)]))
        return super().adapt(x, y, buffers) if both.requires_grad else {}


@fails("begin_before_encoder", r"inputs of task 1 after .*slot=0")
class OneKeyForAll(OneStep):
    """Uses the slot of the first task for all tasks."""

    def task_row(self, task, key):
        return super().task_row(task, TaskKey(0, key.domain))


@fails("transforms_queries", "`transform` is not called with TaskKey")
class NeverTransforms(OneStep):
    """Never calls `transform`."""

    def transform(self, features, key):
        return [features[None]]


@fails("transforms_queries", "`transform` sets all query features to zero, but the outputs of the queries differ")
class IgnoresTransform(OneStep):
    """Calls `transform` but passes the original features to the head."""

    def classify(self, parameters, buffers, features):
        return super().classify(parameters, buffers, self.encoded + 0 * features)

    def encode(self, parameters, buffers, x):
        self.encoded = super().encode(parameters, buffers, x)
        return self.encoded


@fails("transforms_queries", r"the shape \(9, 4\) and 1 keys; expected \[tasks, queries, features\]")
class TransformsWithoutTaskDimension(OneStep):
    """Features of one task, without the dimension of the tasks."""

    def transform(self, features, key):
        self.homogenizers.transform(features, [key])
        return [features[None]]


class ForwardOnly(nn.Module):
    """Calls only `forward` of a module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module.forward(x)


@fails(
    "attachments_take_effect", "a hook from `attach` sets all features to zero, but the outputs of the queries differ"
)
class BypassesHooks(OneStep):
    """Calls the encoder's `forward` directly, which runs no hooks."""

    def call(self, part, tensors, x):
        own = {name.replace(part, "module", 1): value for name, value in tensors.items() if name.startswith(part)}
        return torch.func.functional_call(ForwardOnly(getattr(self, part)), own, (x,))


@fails("homogenizers_removed", "`evaluate` or `predict` calls the homogenizers: .*'transform'")
class TransformsAtMetaTest(OneStep):
    """Transforms queries at meta-test too."""

    def adapted_outputs(self, support_x, support_y, query_x):
        buffers = self.buffers()
        with torch.enable_grad():
            adapted = self.adapt(support_x, support_y, buffers)
        features = self.encode(adapted, buffers, query_x)
        self.homogenizers.transform(features[None], [TaskKey(0, "domain 0")])
        return self.classify(adapted, buffers, features).detach()


@fails("homogenizers_removed", "a prediction after training with homogenizers: not exactly equal")
class AttachesAtMetaTest(OneStep):
    """Attaches the homogenizers at meta-test too."""

    def predict(self, support_x, support_y, query_x):
        with self.homogenizers.attached(self.encoder):
            return super().predict(support_x, support_y, query_x)

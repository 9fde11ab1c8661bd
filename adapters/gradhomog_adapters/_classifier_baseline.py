"""Base class of Baseline and Baseline++: one classifier for all training classes, and a new one per test task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import Task, TaskBatch, TaskRow
from gradhomog_adapters._classifiers import MakeClassifier, fit
from gradhomog_adapters._feature_shape import feature_shape
from gradhomog_adapters._gradients import detach_all
from gradhomog_adapters._metric import MetricLearner, check_classification
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._training_classes import class_count, classification_loss, keep_own_classes, with_class_ids
from gradhomog_adapters.few_shot import Query, Support


class ClassifierBaseline(MetricLearner):
    """Train encoder and classifier on the classes of all tasks; see `Baseline`."""

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any,
        make: MakeClassifier,
        classes: int | None,
        input_shape: Sequence[int] | None,
        test_lr: float,
        test_epochs: int,
        test_batch: int,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        self.classes, self.seed = classes, seed
        self.test_lr, self.test_epochs, self.test_batch = test_lr, test_epochs, test_batch
        self._make = make
        features = math.prod(feature_shape(self, input_shape))
        self.register_module("classifier", make(features, class_count(classes, self.head)))

    # -- training ----------------------------------------------------------------------------------------------------

    def task_row(self, task: Task, key: Any) -> TaskRow:
        return keep_own_classes(super().task_row(with_class_ids(self, task, self.classes), key), task.classes)

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        row = super().batch_row(with_class_ids(self, batch, self.classes))
        return row and keep_own_classes(row, batch.classes)

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        return {**parameters, "task.features": self.support_features(parameters, support).flatten(1)}

    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
        return classification_loss(self, parameters, query)

    # -- meta-test ---------------------------------------------------------------------------------------------------

    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        check_classification(self, support_y)
        parameters, support = detach_all(self.live_parameters), self.support_at_meta_test(support_x, support_y)
        with torch.no_grad():
            features = self.support_features(parameters, support)
            ways = self.network.call("head.", parameters, support.buffers, features).shape[-1]
        features = features.flatten(1)
        generator = torch.Generator().manual_seed(self.seed)  # a new generator per task: tasks are independent
        classifier = self._make(features.shape[1], ways, generator).to(features)
        fit(
            classifier, features, support_y, self.loss, generator,
            lr=self.test_lr, epochs=self.test_epochs, batch=self.test_batch,
        )  # fmt: skip
        with torch.set_grad_enabled(torch.is_grad_enabled() and query_x.requires_grad):
            statistics = self.support_statistics(parameters, support)
            outputs: Tensor = classifier(self.query(parameters, support, query_x, None, statistics).features)
            return outputs

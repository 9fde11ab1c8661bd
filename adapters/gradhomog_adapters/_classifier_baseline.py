"""Base class of Baseline and Baseline++: one classifier for all training classes, and a new one per test task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gradhomog import DataError, OptionError, Task, TaskBatch, TaskRow
from gradhomog_adapters._classifiers import MakeClassifier, fit
from gradhomog_adapters._feature_shape import feature_shape
from gradhomog_adapters._metric import MetricLearner, at_least_float32
from gradhomog_adapters._network.functional import Parameters, call_learner_module
from gradhomog_adapters._rows.gradients import detach_all
from gradhomog_adapters.few_shot import Query, Support

Tasks = TypeVar("Tasks", Task, TaskBatch)


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
        for name, value, low in (
            ("classes", classes, 1), ("test_epochs", test_epochs, 0), ("test_batch", test_batch, 1), ("seed", seed, 0),
        ):  # fmt: skip
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise OptionError(f"`{name}` must be an integer of at least {low}; got {value!r}.")
        if not 0 < test_lr < math.inf:
            raise OptionError(f"`test_lr` must be positive; got {test_lr!r}.")
        self.classes, self.seed = classes, seed
        self.test_lr, self.test_epochs, self.test_batch = test_lr, test_epochs, test_batch
        self._make = make
        features = math.prod(feature_shape(self, input_shape))
        self.register_module("classifier", make(features, classes or self._outputs_of_head(features)))

    def _outputs_of_head(self, features: int) -> int:
        linear = next((part for part in reversed(list(self.head.modules())) if isinstance(part, nn.Linear)), None)
        if linear is None:
            raise OptionError(
                "`classes` must be given: the head has no torch.nn.Linear whose outputs could be counted."
            )
        return linear.out_features

    # -- training ----------------------------------------------------------------------------------------------------

    def task_row(self, task: Task, key: Any) -> TaskRow:
        return _keep_own_classes(super().task_row(self._with_class_ids(task), key), task.classes)

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        row = super().batch_row(self._with_class_ids(batch))
        return row and _keep_own_classes(row, batch.classes)

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        return {**parameters, "task.features": self.support_features(parameters, support).flatten(1)}

    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
        assert query.y is not None
        support = parameters["task.features"]
        outputs = at_least_float32(
            call_learner_module(self.extra_modules, parameters, "classifier", torch.cat([support, query.features]))
        )
        return self.loss(outputs, torch.cat([query.support.y, query.y])), outputs[len(support) :]

    def _with_class_ids(self, tasks: Tasks) -> Tasks:
        """Replace the labels of each task by the indices of its classes among all training classes.

        Raises:
            DataError: only one of `tasks.classes` and the option `classes` is set, or an index is out of range.
        """
        self.check_classification(tasks.support_y)
        ids = tasks.classes
        if ids is None and self.classes is None:
            return tasks
        if ids is None or self.classes is None:
            actual = "no `classes`" if ids is None else "`classes`, the indices of their classes"
            option = f"has classes={self.classes}" if self.classes else "has no option `classes`, the number of classes"
            raise DataError(
                f"the option `classes` of {type(self).__name__} and `classes` of the tasks must be set together: the "
                f"tasks have {actual}, and {type(self).__name__} {option}. An EpisodeStream sets `Task.classes`; pass "
                "its `class_count` as the option."
            )
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= self.classes:
            raise DataError(f"`classes` of tasks must be in 0..{self.classes - 1}; got {low}..{high}.")
        return replace(
            tasks, support_y=ids.gather(-1, tasks.support_y), query_y=ids.gather(-1, tasks.query_y), classes=None
        )

    # -- meta-test ---------------------------------------------------------------------------------------------------

    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        self.check_classification(support_y)
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


def _keep_own_classes(row: TaskRow, classes: Tensor | None) -> TaskRow:
    """Keep only the outputs of the task's own classes, in their order: accuracy is then over `ways` classes."""
    if classes is None:
        return row
    chosen = classes[..., None, :].expand(*row.outputs.shape[:-1], classes.shape[-1])
    return replace(row, outputs=row.outputs.gather(-1, chosen))

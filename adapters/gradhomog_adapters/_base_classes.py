"""What Baseline and Baseline++ share: one classifier of all training classes, and a new one for each task at test."""

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
from gradhomog_adapters._metric import Metric, wide
from gradhomog_adapters._network.functional import Parameters, call_own
from gradhomog_adapters._rows.gradients import constants
from gradhomog_adapters.few_shot import Query, Support

Tasks = TypeVar("Tasks", Task, TaskBatch)


class BaseClasses(Metric):
    """Trains encoder and classifier on the classes of all tasks; see `Baseline`."""

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
        self.learn("classifier", make(features, classes or self._outputs_of_head(features)))

    def _outputs_of_head(self, features: int) -> int:
        linear = next((part for part in reversed(list(self.head.modules())) if isinstance(part, nn.Linear)), None)
        if linear is None:
            raise OptionError("`classes` must be given: the head has no torch.nn.Linear that would tell their number.")
        return linear.out_features

    # -- training ----------------------------------------------------------------------------------------------------

    def task_row(self, task: Task, key: Any) -> TaskRow:
        return _among(super().task_row(self._named(task), key), task.classes)

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        row = super().batch_row(self._named(batch))
        return row and _among(row, batch.classes)

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        return {**parameters, "task.features": self.support_features(parameters, support).flatten(1)}

    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
        assert query.y is not None
        support = parameters["task.features"]
        outputs = wide(call_own(self.own, parameters, "classifier", torch.cat([support, query.features])))
        return self.loss(outputs, torch.cat([query.support.y, query.y])), outputs[len(support) :]

    def _named(self, tasks: Tasks) -> Tasks:
        """With labels that number the training classes, in place of the tasks' own.

        Raises:
            DataError: the tasks do not say which classes they are of, or more than there are.
        """
        self.refuse_regression(tasks.support_y)
        ids = tasks.classes
        if ids is None and self.classes is None:
            return tasks
        if ids is None or self.classes is None:
            given = "no `classes`" if ids is None else "`classes`, numbers of their classes among all"
            wanted = f"classes={self.classes}" if self.classes else "without the option `classes`, their number"
            raise DataError(
                f"the tasks have {given}, and {type(self).__name__} was made {wanted}. Give both (an EpisodeStream "
                "fills `classes` of tasks, and has `class_count`) or neither."
            )
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= self.classes:
            raise DataError(f"`classes` of tasks must lie in 0..{self.classes - 1}; got {low}..{high}.")
        return replace(
            tasks, support_y=ids.gather(-1, tasks.support_y), query_y=ids.gather(-1, tasks.query_y), classes=None
        )

    # -- meta-test ---------------------------------------------------------------------------------------------------

    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        self.refuse_regression(support_y)
        parameters, support = constants(self.live_parameters), self.support_at_meta_test(support_x, support_y)
        with torch.no_grad():
            features = self.support_features(parameters, support)
            ways = self.network.call("head.", parameters, support.buffers, features).shape[-1]
        features = features.flatten(1)
        generator = torch.Generator().manual_seed(self.seed)  # anew for each task: none depends on those before
        classifier = self._make(features.shape[1], ways, generator).to(features)
        fit(
            classifier, features, support_y, self.loss, generator,
            lr=self.test_lr, epochs=self.test_epochs, batch=self.test_batch,
        )  # fmt: skip
        with torch.set_grad_enabled(torch.is_grad_enabled() and query_x.requires_grad):
            statistics = self.support_statistics(parameters, support)
            outputs: Tensor = classifier(self.query(parameters, support, query_x, None, statistics).features)
            return outputs


def _among(row: TaskRow, classes: Tensor | None) -> TaskRow:
    """With the outputs of the task's own classes only, in their order: scores are then of `ways` classes."""
    if classes is None:
        return row
    chosen = classes[..., None, :].expand(*row.outputs.shape[:-1], classes.shape[-1])
    return replace(row, outputs=row.outputs.gather(-1, chosen))

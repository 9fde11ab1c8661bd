"""Classifiers of all training classes, their labels and losses, and the training of a classifier at meta-test."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradhomog import DataError, Task, TaskBatch, TaskKey, TaskRow
from gradhomog_adapters._metric import at_least_float32, check_classification, feature_shape
from gradhomog_adapters._network import Parameters, linear_layers
from gradhomog_adapters.few_shot import FewShotLearner, Query, Tasks

MANY_CLASSES = 200  # classes


def make_linear(features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module:
    """A linear layer with PyTorch's initialization: uniform in ±1/√features."""
    # On the meta device, so that nothing is drawn from the global generator.
    layer = nn.Linear(features, outputs, device="meta").to_empty(device="cpu")
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -1 / math.sqrt(features), 1 / math.sqrt(features), generator=generator)
    return layer


class CosineClassifier(nn.Module):
    """outputs = scale · length_w · cos(direction_w, features): a linear layer under weight normalization.

    Initial lengths are those of a linear layer's weights. For zero features, outputs and derivatives are zero. Default
    scale, from the authors: 2 for up to 200 classes, 10 for more.
    """

    def __init__(
        self, features: int, outputs: int, scale: float | None = None, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.scale = scale or (2.0 if outputs <= MANY_CLASSES else 10.0)
        weight = torch.empty(outputs, features, device="cpu")  # the device of the generator
        nn.init.uniform_(weight, -1 / math.sqrt(features), 1 / math.sqrt(features), generator=generator)
        self.direction = nn.Parameter(weight)
        self.length = nn.Parameter(weight.norm(dim=1, keepdim=True))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * nn.functional.linear(normalize_rows(features), self.length * normalize_rows(self.direction))


def normalize_rows(vectors: Tensor) -> Tensor:
    """Normalize rows to length one; zero rows stay zero."""
    square = vectors.square().sum(1, keepdim=True)
    return vectors / torch.where(square > 0, square, 1).sqrt()


def class_count(classes: int | None, head: nn.Module) -> int:
    """The number of training classes: the option `classes`, or the number of outputs of the head.

    Raises:
        OptionError: `classes` is None, and the head has no linear layer.
    """
    if classes is not None:
        return classes
    message = "`classes` must be given: the head has no torch.nn.Linear whose outputs could be counted."
    return linear_layers(head, message)[-1].out_features


def keep_own_classes(row: TaskRow, classes: Tensor | None) -> TaskRow:
    """Keep only the outputs of the task's own classes, in their order: accuracy is then over `ways` classes."""
    if classes is None:
        return row
    chosen = classes[..., None, :].expand(*row.outputs.shape[:-1], classes.shape[-1])
    return replace(row, outputs=row.outputs.gather(-1, chosen))


class ClassifierLearner(FewShotLearner):
    """A learner that trains `learner.classifier` to classify all training classes; with a method of meta-test."""

    classes: int | None
    classifies = True
    """True if rows are those of the classifier."""

    def register_classifier(self, input_shape: Sequence[int] | None) -> None:
        """Register `learner.classifier`, from the features of one input to all training classes."""
        features = math.prod(feature_shape(self, input_shape))
        self.register_module("classifier", self.make_classifier(features, class_count(self.classes, self.head)))

    def make_classifier(self, features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module:
        """Return a new classifier; its weights are drawn from `generator`, by default from the global generator."""
        return make_linear(features, outputs, generator)

    def prepared(self, tasks: Tasks) -> Tasks:
        """Replace the labels of tasks by the indices of their classes among all training classes.

        If the option `classes` is None, labels are indices already.

        Raises:
            DataError: only one of `tasks.classes` and `classes` is set, or an index is out of range.
        """
        if not self.classifies:
            return tasks
        check_classification(self, tasks.support_y)
        name, ids, classes = type(self).__name__, tasks.classes, self.classes
        if ids is None and classes is None:
            return tasks
        if ids is None or classes is None:
            actual = "no `classes`" if ids is None else "`classes`, the indices of their classes"
            option = f"has classes={classes}" if classes else "has no option `classes`, the number of classes"
            raise DataError(
                f"the option `classes` of {name} and `classes` of the tasks must be set together: the tasks have "
                f"{actual}, and {name} {option}. An EpisodeStream sets `Task.classes`; pass its `class_count` as the "
                "option."
            )
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= classes:
            raise DataError(f"`classes` of tasks must be in 0..{classes - 1}; got {low}..{high}.")
        return replace(
            tasks, support_y=ids.gather(-1, tasks.support_y), query_y=ids.gather(-1, tasks.query_y), classes=None
        )

    def task_row(self, task: Task, key: TaskKey) -> TaskRow:
        row = super().task_row(task, key)
        return keep_own_classes(row, task.classes) if self.classifies else row

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        row = super().batch_row(batch)
        return keep_own_classes(row, batch.classes) if row and self.classifies else row

    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
        """Mean loss over the support features `task.features` and the queries; outputs of the queries."""
        if not self.classifies:
            return super().query_loss(parameters, query)
        assert query.y is not None
        support = parameters["task.features"]
        outputs = self.classifier_outputs(parameters, torch.cat([support, query.features.flatten(1)]))
        return self.loss(outputs, torch.cat([query.support.y, query.y])), outputs[len(support) :]

    def classifier_outputs(self, parameters: Parameters, features: Tensor) -> Tensor:
        """Outputs `[n, classes]` of the classifier for features `[n, features]`."""
        return at_least_float32(self.call_extra_module(parameters, "classifier", features))

"""Classification of all training classes by the module `learner.classifier`, for learners that are trained by it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from gradhomog import DataError, OptionError, Task, TaskBatch, TaskRow
from gradhomog_adapters._metric import at_least_float32, check_classification
from gradhomog_adapters._network import Parameters, call_learner_module
from gradhomog_adapters.few_shot import FewShotLearner, Query

Tasks = TypeVar("Tasks", Task, TaskBatch)


def class_count(classes: int | None, head: nn.Module) -> int:
    """The number of training classes: the option `classes`, or the number of outputs of the head.

    Raises:
        OptionError: `classes` is None, and the head has no linear layer.
    """
    if classes is not None:
        return classes
    linear = next((part for part in reversed(list(head.modules())) if isinstance(part, nn.Linear)), None)
    if linear is None:
        raise OptionError("`classes` must be given: the head has no torch.nn.Linear whose outputs could be counted.")
    return linear.out_features


def with_class_ids(learner: FewShotLearner, tasks: Tasks, classes: int | None) -> Tasks:
    """Replace the labels of tasks by the indices of their classes among all training classes.

    Args:
        learner: named in errors.
        classes: the option `classes` of the learner. None: labels are indices already.

    Raises:
        DataError: the tasks are regressions, only one of `tasks.classes` and `classes` is set, or an index is out of
            range.
    """
    check_classification(learner, tasks.support_y)
    ids, name = tasks.classes, type(learner).__name__
    if ids is None and classes is None:
        return tasks
    if ids is None or classes is None:
        actual = "no `classes`" if ids is None else "`classes`, the indices of their classes"
        option = f"has classes={classes}" if classes else "has no option `classes`, the number of classes"
        raise DataError(
            f"the option `classes` of {name} and `classes` of the tasks must be set together: the tasks have {actual}, "
            f"and {name} {option}. An EpisodeStream sets `Task.classes`; pass its `class_count` as the option."
        )
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= classes:
        raise DataError(f"`classes` of tasks must be in 0..{classes - 1}; got {low}..{high}.")
    return replace(
        tasks, support_y=ids.gather(-1, tasks.support_y), query_y=ids.gather(-1, tasks.query_y), classes=None
    )


def keep_own_classes(row: TaskRow, classes: Tensor | None) -> TaskRow:
    """Keep only the outputs of the task's own classes, in their order: accuracy is then over `ways` classes."""
    if classes is None:
        return row
    chosen = classes[..., None, :].expand(*row.outputs.shape[:-1], classes.shape[-1])
    return replace(row, outputs=row.outputs.gather(-1, chosen))


def classifier_outputs(learner: FewShotLearner, parameters: Parameters, features: Tensor) -> Tensor:
    """Outputs `[n, classes]` of `learner.classifier` for features `[n, features]`."""
    return at_least_float32(call_learner_module(learner.extra_modules, parameters, "classifier", features))


def classification_loss(learner: FewShotLearner, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
    """Mean loss of the classifier over the support features `task.features` and the queries; outputs of the queries."""
    assert query.y is not None
    support = parameters["task.features"]
    outputs = classifier_outputs(learner, parameters, torch.cat([support, query.features.flatten(1)]))
    return learner.loss(outputs, torch.cat([query.support.y, query.y])), outputs[len(support) :]

"""The default loss and the scores of learners, and the error of a head with too few outputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gradhomog.errors import DataError
from gradhomog.learners.results import Evaluation
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.learners.training_mode import training_mode

Loss = Callable[[Tensor, Tensor], Tensor]
"""A loss function, called as `loss(outputs, targets)`; it returns a scalar, the mean over the examples."""


def default_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy for integer targets, the mean squared error for floating-point targets."""
    if targets.is_floating_point():
        return torch.nn.functional.mse_loss(outputs, targets)
    return torch.nn.functional.cross_entropy(outputs, targets)


def accuracy(outputs: Tensor, targets: Tensor) -> float | None:
    """Return the share of correct class predictions; None for regression."""
    if targets.is_floating_point():
        return None
    return float((outputs.argmax(dim=1) == targets).double().mean())


def accuracies(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return each task's accuracy, float64 `[tasks]`, from outputs `[tasks, queries, ways]`; None for regression."""
    return None if targets.is_floating_point() else (outputs.argmax(dim=-1) == targets).double().mean(-1)


def score_tasks(tasks: TaskBatch | Iterable[Task], compute: Callable[[Task], tuple[Tensor, float]]) -> Evaluation:
    """Return scores and losses of tasks; `compute` returns the outputs for a task's query set, and their loss.

    Raises:
        DataError: there is no task.
    """
    result = Evaluation()
    for task in tasks:
        outputs, loss = compute(task)
        score = accuracy(outputs, task.query_y)
        if score is None:
            result.metric, score = "mse", float((outputs - task.query_y).square().mean())
        result.scores.append(score)
        result.losses.append(loss)
        result.domains.append(task.domain)
    if not result.scores:
        raise DataError("`tasks` must contain at least one task; got none.")
    return result


@contextmanager
def explain_head_errors(encoder: nn.Module, head: nn.Module, x: Tensor, *targets: Tensor) -> Iterator[None]:
    """Raise a clear error for a head with too few outputs; the loss raises only "index out of bounds"."""
    try:
        yield
    except (IndexError, RuntimeError) as cause:
        if "out of bounds" in str(cause):
            with training_mode((encoder, head), training=False), torch.no_grad():
                outputs = head(encoder(x[:1])).shape[-1]
            if error := _too_few_outputs(outputs, targets):
                raise error from cause
        raise


def check_classes(outputs: Tensor, support_targets: Tensor) -> None:
    """Raise if a support label is not the index of an output, which learners without a loss on the support set ignore.

    Only for labels on the CPU: reading others would wait for the device. Not for one output, whose labels a loss such
    as binary cross entropy defines.

    Raises:
        DataError.
    """
    readable = support_targets.device.type == "cpu" and support_targets.numel() > 0
    if readable and outputs.shape[-1] > 1 and (error := _too_few_outputs(outputs.shape[-1], [support_targets])):
        raise error


def _too_few_outputs(outputs: int, targets: Sequence[Tensor]) -> DataError | None:
    classes = 1 + max((int(y.max()) for y in targets if not y.is_floating_point()), default=0)
    if outputs >= classes:
        return None
    return DataError(
        f"`head` must have at least {classes} outputs, as the largest class index is {classes - 1}; "
        f"got {outputs}. Use a head with {classes} outputs, or number each task's classes from 0."
    )

"""What a row is: of the parameters' names and shapes, and of one task alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradhomog.evidence import TaskKey
from gradhomog.learners import Learner
from gradhomog.reports import TaskRow
from gradhomog.tasks import TaskBatch
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import agree
from gradhomog.testing.learners.subject import LearnerSubject


@check("learners")
def rows_fit_parameters(subject: LearnerSubject) -> None:
    """A row has the names, shapes and dtype of `named_parameters`, is finite, and holds on to no graph.

    So have the losses, the outputs, and the query features with their cotangents; in float64 and in float32.
    """
    for dtype in (torch.float64, torch.float32):
        made, task = subject.learner(dtype=dtype), _of(subject, dtype)[0]
        with made.mode(training=True), torch.enable_grad():
            row = made.task_row(task, TaskKey(0, "domain 0"))
        _judge_row(row, made, len(task.query_x))
        rows = made.rows(_of(subject, dtype))
        expected = {name: (3, *value.shape) for name, value in made.named_parameters().items()}
        if found := _differences({name: tuple(value.shape) for name, value in rows.jacobian.items()}, expected):
            raise CheckFailure(f"`rows` of three tasks: {found}")
        for name, block in rows.jacobian.items():
            _judge_tensor(f"the rows of `{name}`", block, dtype)
        _judge_tensor("`losses` of three tasks", rows.losses, torch.float64, (3,))


def _judge_row(row: TaskRow, made: Learner, queries: int) -> None:
    parameters = made.named_parameters()
    dtype = next(iter(parameters.values())).dtype
    if missing := set(parameters) ^ set(row.gradients):
        raise CheckFailure(
            f"`task_row` gives gradients of {sorted(row.gradients)}; expected one of each parameter, None where the "
            f"loss does not depend on it: {sorted(missing)} {'is' if len(missing) == 1 else 'are'} not in both"
        )
    shapes = {name: tuple(value.shape) for name, value in row.gradients.items() if value is not None}
    if found := _differences(shapes, {name: tuple(parameters[name].shape) for name in shapes}):
        raise CheckFailure(f"`task_row`: {found}")
    given = {f"the gradient of `{name}`": value for name, value in row.gradients.items() if value is not None}
    _judge_tensor("`loss`", row.loss, None, ())
    _judge_tensor("`outputs`", row.outputs, dtype, (queries, row.outputs.shape[-1]))
    for name, value in given.items():
        _judge_tensor(name, value, dtype)
    if not len(row.features) == len(row.feature_cotangents) == 1:
        raise CheckFailure(
            f"`task_row` gives {len(row.features)} features and {len(row.feature_cotangents)} feature_cotangents where "
            "nothing transforms; expected one of each: what homogenizers.transform returned, and the derivatives by it"
        )
    _judge_tensor("`features`", row.features[0], dtype, (queries, row.features[0].shape[-1]))
    _judge_tensor("`feature_cotangents`", row.feature_cotangents[0], dtype, tuple(row.features[0].shape))


def _judge_tensor(what: str, value: Tensor, dtype: torch.dtype | None, shape: tuple[int, ...] | None = None) -> None:
    if shape is not None and value.shape != shape:
        raise CheckFailure(f"{what} has the shape {tuple(value.shape)}; expected {shape}")
    if dtype is not None and value.dtype != dtype:
        raise CheckFailure(f"{what}: {value.dtype}; expected {dtype}")
    if value.requires_grad:
        raise CheckFailure(f"{what} requires grad and so holds on to the graph of the task: detach it")
    if not bool(torch.isfinite(value).all()):
        raise CheckFailure(f"{what} is not finite", found=value)


def _differences(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    names = [name for name in dict.fromkeys([*expected, *found]) if found.get(name) != expected.get(name)]
    return ", ".join(f"`{name}` has {found.get(name)}, expected {expected.get(name)}" for name in names)


def _of(subject: LearnerSubject, dtype: torch.dtype) -> TaskBatch:
    batch = subject.batch()
    targets = [y.to(dtype) if y.is_floating_point() else y for y in (batch.support_y, batch.query_y)]
    return TaskBatch(batch.support_x.to(dtype), targets[0], batch.query_x.to(dtype), targets[1], batch.domains)


@check("learners")
def rows_alone(subject: LearnerSubject) -> None:
    """The row of a task does not depend on the other tasks of the batch, on their order, or on earlier batches.

    What would leak from one to the next: buffers, statistics, an inner optimizer's state, a generator.
    """
    for norm in (False, True) if subject.takes_norm else (False,):
        batch, made = subject.batch(), subject.learner(norm=norm)
        first = made.rows(batch)
        again, turned = made.rows(batch), made.rows([batch[2], batch[1], batch[0]])
        for slot in range(3):
            alone = subject.learner(norm=norm).rows([batch[slot]])
            for how, other, place in (
                ("after other batches", again, slot), ("in the opposite order", turned, 2 - slot), ("alone", alone, 0),
            ):  # fmt: skip
                what = f"of task {slot} {how}{' with batch normalization' if norm else ''}"
                agree(other.losses[place], first.losses[slot], f"the loss {what}", rtol=1e-9, atol=1e-12)
                for name, block in first.jacobian.items():
                    agree(other.jacobian[name][place], block[slot], f"the row {what}, `{name}`", rtol=1e-8, atol=1e-11)

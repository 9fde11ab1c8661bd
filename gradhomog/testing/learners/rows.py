"""Checks of a learner's rows: shapes, independence of the batch, exact derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch
from torch import Tensor

from gradhomog.errors import GradhomogError
from gradhomog.learners.learner import Learner
from gradhomog.learners.results import TaskRow
from gradhomog.learners.tasks import TaskBatch
from gradhomog.step.step import TaskKey
from gradhomog.testing.check import CheckFailure, check, describe_error
from gradhomog.testing.comparisons import STEP, derivatives_close, require_close
from gradhomog.testing.learners.auxiliary_homogenizers import ShiftedFeatures
from gradhomog.testing.learners.subject import LearnerSubject, TaskType

METRICS: Mapping[TaskType, str] = {"classification": "accuracy", "regression": "mse"}
TASK_TYPE_WORDS: Mapping[TaskType, str] = {"classification": "classif", "regression": "regress"}


@check("learners")
def computes_rows(subject: LearnerSubject) -> None:
    """The learner can be made with a small float64 network and computes rows of classification or regression tasks.

    The network is an encoder of two convolutions and a linear head. If this check fails, checks that need rows are not
    applicable.
    """
    if len(subject.row_errors) == len(get_args(TaskType)):
        raise CheckFailure(
            "with an encoder of two convolutions and a linear head, in float64, the learner computes no rows: "
            f"{describe_error(subject.row_errors['classification'])}"
        )


@check("learners")
def task_types_supported_or_rejected(subject: LearnerSubject) -> None:
    """Classification and regression are each supported, or rejected by an error that names the type of task.

    Support means rows and scores. The error is a `GradhomogError` with the word classification (or classifier), or
    regression.
    """
    _ = subject.task_type
    for task_type in get_args(TaskType):
        error = subject.row_errors.get(task_type)
        if error is None:
            batch = subject.batch(tasks=2, task_type=task_type)
            result = subject.learner(task_type=task_type).evaluate(batch)
            if result.metric != METRICS[task_type] or len(result.scores) != len(batch):
                raise CheckFailure(
                    f"{task_type}: `evaluate` returns {result.metric}, {len(result.scores)} scores for {len(batch)} "
                    f"tasks; expected {METRICS[task_type]}, one score per task"
                )
        elif not isinstance(error, GradhomogError) or TASK_TYPE_WORDS[task_type] not in str(error).lower():
            raise CheckFailure(
                f"{task_type} is rejected by {describe_error(error)}: raise a GradhomogError whose message states that "
                f"{task_type} is not supported"
            )


@check("learners")
def rows_fit_parameters(subject: LearnerSubject) -> None:
    """A row has the names, shapes and dtype of `named_parameters`, is finite, and does not require grad.

    Losses, outputs, query features and their gradients are checked likewise; all in float64 and in float32.
    """
    for dtype in (torch.float64, torch.float32):
        learner, batch = subject.learner(dtype=dtype), _with_dtype(subject.batch(), dtype)
        with learner.mode(training=True), torch.enable_grad():
            row = learner.task_row(batch[0], TaskKey(0, "domain 0"))
        _require_row(row, learner, len(batch[0].query_x))
        rows = learner.rows(batch)
        expected = {name: (3, *value.shape) for name, value in learner.named_parameters().items()}
        if found := _describe_differences(
            {name: tuple(value.shape) for name, value in rows.jacobian.items()}, expected
        ):
            raise CheckFailure(f"`rows` of three tasks: {found}")
        for name, block in rows.jacobian.items():
            _require_tensor(f"the rows of `{name}`", block, dtype)
        _require_tensor("`losses` of three tasks", rows.losses, torch.float64, (3,))


def _require_row(row: TaskRow, learner: Learner, queries: int) -> None:
    parameters = learner.named_parameters()
    dtype = next(iter(parameters.values())).dtype
    if missing := set(parameters) ^ set(row.gradients):
        raise CheckFailure(
            f"`task_row` returns gradients for {sorted(row.gradients)}; expected one per parameter, or None if the "
            f"loss does not depend on it. Names that are missing or unexpected: {sorted(missing)}"
        )
    gradients = {name: value for name, value in row.gradients.items() if value is not None}
    shapes = {name: tuple(value.shape) for name, value in gradients.items()}
    if found := _describe_differences(shapes, {name: tuple(parameters[name].shape) for name in shapes}):
        raise CheckFailure(f"`task_row`: {found}")
    _require_tensor("`loss`", row.loss, None, ())
    _require_tensor("`outputs`", row.outputs, dtype, (queries, row.outputs.shape[-1]))
    for name, value in gradients.items():
        _require_tensor(f"the gradient of `{name}`", value, dtype)
    if not len(row.features) == len(row.feature_grads) == 1:
        raise CheckFailure(
            f"without a transforming homogenizer, `task_row` returns {len(row.features)} features and "
            f"{len(row.feature_grads)} feature_grads; expected one of each: the result of homogenizers.transform and "
            "the gradient of the loss w.r.t. it"
        )
    _require_tensor("`features`", row.features[0], dtype, (queries, row.features[0].shape[-1]))
    _require_tensor("`feature_grads`", row.feature_grads[0], dtype, tuple(row.features[0].shape))


def _require_tensor(what: str, value: Tensor, dtype: torch.dtype | None, shape: tuple[int, ...] | None = None) -> None:
    if shape is not None and value.shape != shape:
        raise CheckFailure(f"{what} has the shape {tuple(value.shape)}; expected {shape}")
    if dtype is not None and value.dtype != dtype:
        raise CheckFailure(f"{what} has the dtype {value.dtype}; expected {dtype}")
    if value.requires_grad:
        raise CheckFailure(f"{what} requires grad and keeps the task's graph in memory: detach it")
    if not bool(torch.isfinite(value).all()):
        raise CheckFailure(f"{what} is not finite", found=value)


def _describe_differences(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    names = [name for name in dict.fromkeys([*expected, *found]) if found.get(name) != expected.get(name)]
    return ", ".join(f"`{name}` has {found.get(name)}, expected {expected.get(name)}" for name in names)


def _with_dtype(batch: TaskBatch, dtype: torch.dtype) -> TaskBatch:
    targets = [y.to(dtype) if y.is_floating_point() else y for y in (batch.support_y, batch.query_y)]
    return TaskBatch(batch.support_x.to(dtype), targets[0], batch.query_x.to(dtype), targets[1], batch.domains)


@check("learners")
def rows_independent_of_batch(subject: LearnerSubject) -> None:
    """The row of a task does not depend on the other tasks of the batch, on their order, or on earlier batches.

    Possible leaks between tasks: buffers, statistics, the state of an inner optimizer, a generator.
    """
    for norm in (False, True) if subject.accepts_batch_norm else (False,):
        batch, learner = subject.batch(), subject.learner(norm=norm)
        first = learner.rows(batch)
        again, reversed_order = learner.rows(batch), learner.rows([batch[2], batch[1], batch[0]])
        for slot in range(3):
            alone = subject.learner(norm=norm).rows([batch[slot]])
            for how, other, place in (
                ("after other batches", again, slot), ("in reversed order", reversed_order, 2 - slot),
                ("alone", alone, 0),
            ):  # fmt: skip
                what = f"of task {slot} {how}{' with batch normalization' if norm else ''}"
                require_close(other.losses[place], first.losses[slot], f"the loss {what}", rtol=1e-9, atol=1e-12)
                for name, block in first.jacobian.items():
                    require_close(
                        other.jacobian[name][place], block[slot], f"the row {what}, `{name}`", rtol=1e-8, atol=1e-11
                    )


@check("learners", claim="exact_rows")
def exact_rows(subject: LearnerSubject) -> None:
    """Rows equal central differences of the query losses in float64, along a random direction in each parameter."""
    learner, batch = subject.learner(), subject.batch(seed=5, tasks=2)
    rows, generator = learner.rows(batch).jacobian, torch.Generator().manual_seed(2)
    for name, parameter in learner.named_parameters().items():
        along = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        start, ends = parameter.detach().clone(), []
        for sign in (1, -1):
            parameter.data.copy_(start + sign * STEP * along)
            ends.append(learner.rows(batch).losses)
        parameter.data.copy_(start)
        for slot, expected in enumerate(((ends[0] - ends[1]) / (2 * STEP)).tolist()):
            found = float((rows[name][slot] * along).sum())
            if not derivatives_close(found, expected):
                raise CheckFailure(
                    f"the row of `{name}` is not the derivative of the query loss: along a random direction it is "
                    f"{found:.6g}; finite differences give {expected:.6g}"
                )


@check("learners")
def feature_grads(subject: LearnerSubject) -> None:
    """`feature_grads` are the gradients of the losses w.r.t. the query features, before and after a `transform`.

    They are compared with central differences, by a homogenizer that doubles the query features and shifts them along a
    random direction.
    """
    shift = ShiftedFeatures()
    learner, batch = subject.learner([shift]), subject.batch(seed=6, tasks=2)
    rows, losses = learner.rows(batch), []
    if not len(rows.features) == len(rows.feature_grads) == 2:
        raise CheckFailure(
            f"with a transforming homogenizer, `rows` returns {len(rows.features)} features and "
            f"{len(rows.feature_grads)} feature_grads; expected two of each: before and after `transform`"
        )
    for sign in (1, -1):
        shift.size = sign * STEP
        losses.append(learner.rows(batch).losses)
    for slot, expected in enumerate(((losses[0] - losses[1]) / (2 * STEP)).tolist()):
        for when, gradients, factor in zip(("before", "after"), rows.feature_grads, (shift.factor, 1), strict=True):
            direction = shift.direction(slot, gradients[slot])
            found = float((gradients[slot] * direction).sum()) / factor
            if not derivatives_close(found, expected):
                raise CheckFailure(
                    f"`feature_grads` {when} the transform are not the derivative of the loss: along a random "
                    f"direction in the features of task {slot} they give {found:.6g}; finite differences give "
                    f"{expected:.6g}"
                )

"""Checks of a learner's per-task gradients: shapes, batch independence, exact derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch
from torch import Tensor

from gradhomog.errors import GradhomogError
from gradhomog.learners import Learner
from gradhomog.reports import TaskRow
from gradhomog.task_key import TaskKey
from gradhomog.tasks import TaskBatch
from gradhomog.testing.checking import CheckFailure, check, describe_error
from gradhomog.testing.comparing import STEP, agree, derivatives_agree
from gradhomog.testing.learners.probes import ShiftedFeatures
from gradhomog.testing.learners.subject import LearnerSubject, TaskType

METRICS: Mapping[TaskType, str] = {"classification": "accuracy", "regression": "mse"}
STEMS: Mapping[TaskType, str] = {"classification": "classif", "regression": "regress"}


@check("learners")
def forms_rows(subject: LearnerSubject) -> None:
    """The learner can be made on a small float64 network and forms rows for classification or regression tasks.

    The network is an encoder of two convolutions and a linear head. If this check fails, checks that need
    rows do not apply.
    """
    if len(subject.refusals) == len(get_args(TaskType)):
        raise CheckFailure(
            "on an encoder of two convolutions and a linear head, in float64, it forms no rows: "
            f"{describe_error(subject.refusals['classification'])}"
        )


@check("learners")
def serves_or_refuses(subject: LearnerSubject) -> None:
    """Classification and regression are each served, in rows and scores, or refused by an error that names the type.

    The error is a `GradhomogError` with the word classification (or classifier), or regression.
    """
    _ = subject.task_type
    for task_type in get_args(TaskType):
        error = subject.refusals.get(task_type)
        if error is None:
            batch = subject.batch(tasks=2, task_type=task_type)
            result = subject.learner(task_type=task_type).evaluate(batch)
            if result.metric != METRICS[task_type] or len(result.scores) != len(batch):
                raise CheckFailure(
                    f"{task_type} is scored by {result.metric}, {len(result.scores)} scores of {len(batch)} tasks; "
                    f"expected {METRICS[task_type]}, one per task"
                )
        elif not isinstance(error, GradhomogError) or STEMS[task_type] not in str(error).lower():
            raise CheckFailure(
                f"{task_type} is refused by {describe_error(error)}: raise a GradhomogError with the message that "
                f"{task_type} is not served"
            )


@check("learners")
def rows_fit_parameters(subject: LearnerSubject) -> None:
    """A row has the names, shapes and dtype of `named_parameters`, is finite, and keeps no graph.

    The same holds for the losses, the outputs, and the query features with their gradients; in float64 and in float32.
    """
    for dtype in (torch.float64, torch.float32):
        made, batch = subject.learner(dtype=dtype), _converted(subject.batch(), dtype)
        with made.mode(training=True), torch.enable_grad():
            row = made.task_row(batch[0], TaskKey(0, "domain 0"))
        _require_row(row, made, len(batch[0].query_x))
        rows = made.rows(batch)
        expected = {name: (3, *value.shape) for name, value in made.named_parameters().items()}
        if found := _differences({name: tuple(value.shape) for name, value in rows.jacobian.items()}, expected):
            raise CheckFailure(f"`rows` of three tasks: {found}")
        for name, block in rows.jacobian.items():
            _require_tensor(f"the rows of `{name}`", block, dtype)
        _require_tensor("`losses` of three tasks", rows.losses, torch.float64, (3,))


def _require_row(row: TaskRow, made: Learner, queries: int) -> None:
    parameters = made.named_parameters()
    dtype = next(iter(parameters.values())).dtype
    if missing := set(parameters) ^ set(row.gradients):
        raise CheckFailure(
            f"`task_row` gives gradients of {sorted(row.gradients)}; expected one of each parameter, None where the "
            f"loss does not depend on it: {sorted(missing)} {'is' if len(missing) == 1 else 'are'} not in both"
        )
    gradients = {name: value for name, value in row.gradients.items() if value is not None}
    shapes = {name: tuple(value.shape) for name, value in gradients.items()}
    if found := _differences(shapes, {name: tuple(parameters[name].shape) for name in shapes}):
        raise CheckFailure(f"`task_row`: {found}")
    _require_tensor("`loss`", row.loss, None, ())
    _require_tensor("`outputs`", row.outputs, dtype, (queries, row.outputs.shape[-1]))
    for name, value in gradients.items():
        _require_tensor(f"the gradient of `{name}`", value, dtype)
    if not len(row.features) == len(row.feature_grads) == 1:
        raise CheckFailure(
            f"`task_row` gives {len(row.features)} features and {len(row.feature_grads)} feature_grads where nothing "
            "transforms; expected one of each: the result of homogenizers.transform, and the loss's gradient w.r.t. it"
        )
    _require_tensor("`features`", row.features[0], dtype, (queries, row.features[0].shape[-1]))
    _require_tensor("`feature_grads`", row.feature_grads[0], dtype, tuple(row.features[0].shape))


def _require_tensor(what: str, value: Tensor, dtype: torch.dtype | None, shape: tuple[int, ...] | None = None) -> None:
    if shape is not None and value.shape != shape:
        raise CheckFailure(f"{what} has the shape {tuple(value.shape)}; expected {shape}")
    if dtype is not None and value.dtype != dtype:
        raise CheckFailure(f"{what}: {value.dtype}; expected {dtype}")
    if value.requires_grad:
        raise CheckFailure(f"{what} requires grad and so keeps the graph of the task: detach it")
    if not bool(torch.isfinite(value).all()):
        raise CheckFailure(f"{what} is not finite", found=value)


def _differences(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    names = [name for name in dict.fromkeys([*expected, *found]) if found.get(name) != expected.get(name)]
    return ", ".join(f"`{name}` has {found.get(name)}, expected {expected.get(name)}" for name in names)


def _converted(batch: TaskBatch, dtype: torch.dtype) -> TaskBatch:
    targets = [y.to(dtype) if y.is_floating_point() else y for y in (batch.support_y, batch.query_y)]
    return TaskBatch(batch.support_x.to(dtype), targets[0], batch.query_x.to(dtype), targets[1], batch.domains)


@check("learners")
def rows_independent_of_batch(subject: LearnerSubject) -> None:
    """The row of a task does not depend on the other tasks of the batch, on their order, or on earlier batches.

    Possible leaks from one to the next: buffers, statistics, an inner optimizer's state, a generator.
    """
    for norm in (False, True) if subject.accepts_batch_norm else (False,):
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


@check("learners", claim="exact_rows")
def exact_rows(subject: LearnerSubject) -> None:
    """Rows equal central differences of the query losses in float64, along a random direction of every parameter."""
    made, batch = subject.learner(), subject.batch(seed=5, tasks=2)
    rows, generator = made.rows(batch).jacobian, torch.Generator().manual_seed(2)
    for name, parameter in made.named_parameters().items():
        along = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        start, ends = parameter.detach().clone(), []
        for sign in (1, -1):
            parameter.data.copy_(start + sign * STEP * along)
            ends.append(made.rows(batch).losses)
        parameter.data.copy_(start)
        for slot, expected in enumerate(((ends[0] - ends[1]) / (2 * STEP)).tolist()):
            found = float((rows[name][slot] * along).sum())
            if not derivatives_agree(found, expected):
                raise CheckFailure(
                    f"the row of `{name}` is not the derivative of the query loss: along a random direction it is "
                    f"{found:.6g}; finite differences give {expected:.6g}"
                )


@check("learners")
def feature_grads(subject: LearnerSubject) -> None:
    """`feature_grads` are the gradients of the losses w.r.t. the query features, before and after a `transform`.

    Against central differences: a homogenizer doubles the query features, and moves them along a random direction.
    """
    shift = ShiftedFeatures()
    made, batch = subject.learner([shift]), subject.batch(seed=6, tasks=2)
    rows, losses = made.rows(batch), []
    if not len(rows.features) == len(rows.feature_grads) == 2:
        raise CheckFailure(
            f"with a homogenizer that transforms there are {len(rows.features)} features and "
            f"{len(rows.feature_grads)} feature_grads; expected two of each: before and after it"
        )
    for sign in (1, -1):
        shift.size = sign * STEP
        losses.append(made.rows(batch).losses)
    for slot, expected in enumerate(((losses[0] - losses[1]) / (2 * STEP)).tolist()):
        for when, gradients, factor in zip(("before", "after"), rows.feature_grads, (shift.factor, 1), strict=True):
            direction = shift.direction(slot, gradients[slot])
            found = float((gradients[slot] * direction).sum()) / factor
            if not derivatives_agree(found, expected):
                raise CheckFailure(
                    f"the feature gradients {when} the transform are not the loss's derivative: along a random "
                    f"direction of the features of task {slot} it would be {found:.6g}; finite differences give "
                    f"{expected:.6g}"
                )

"""Checks of a learner's rows: shapes, independence of the batch, derivatives, and the stages of homogenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor

from gradhomog.errors import GradhomogError
from gradhomog.learners.learner import Learner
from gradhomog.learners.results import TaskRow
from gradhomog.learners.tasks import TaskBatch
from gradhomog.step.homogenizer import Homogenizer
from gradhomog.step.step import TaskKey
from gradhomog.testing.assertions import central_difference, require_close, require_derivative, require_exact_rows
from gradhomog.testing.check_results import CheckFailure, check, describe_failure
from gradhomog.testing.probing_homogenizers import Call, Recorder, ShiftedFeatures, ZeroEncoder, ZeroFeatures
from gradhomog.testing.snapshots import input_bits
from gradhomog.testing.subjects import LearnerSubject, TaskType

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
            f"{_first_line(subject.row_errors['classification'])}"
        )


def _first_line(error: Exception) -> str:
    return describe_failure(error).partition("\n")[0]


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
                f"{task_type} is rejected by {_first_line(error)}: raise a GradhomogError whose message states that "
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
    require_exact_rows(learner, learner.rows(batch).jacobian, lambda: learner.rows(batch).losses, "", "query loss")


@check("learners")
def feature_grads(subject: LearnerSubject) -> None:
    """`feature_grads` are the gradients of the losses w.r.t. the query features, before and after a `transform`.

    They are compared with central differences, by a homogenizer that doubles the query features and shifts them along a
    random direction.
    """
    shift = ShiftedFeatures()
    learner, batch = subject.learner([shift]), subject.batch(seed=6, tasks=2)
    rows = learner.rows(batch)
    if not len(rows.features) == len(rows.feature_grads) == 2:
        raise CheckFailure(
            f"with a transforming homogenizer, `rows` returns {len(rows.features)} features and "
            f"{len(rows.feature_grads)} feature_grads; expected two of each: before and after `transform`"
        )

    def losses_at(step: float) -> Tensor:
        shift.size = step
        return learner.rows(batch).losses

    for slot, expected in enumerate(central_difference(losses_at).tolist()):
        for when, gradients, factor in zip(("before", "after"), rows.feature_grads, (shift.factor, 1), strict=True):
            direction = shift.direction(slot, gradients[slot])
            require_derivative(
                float((gradients[slot] * direction).sum()) / factor, expected,
                f"`feature_grads` {when} the transform are not the derivative of the loss: along a random direction in "
                f"the features of task {slot} they give",
            )  # fmt: skip


# -- stages of homogenizers ------------------------------------------------------------------------------------------


@check("learners")
def begin_before_encoder(subject: LearnerSubject) -> None:
    """`begin(key, part)` is called before the encoder runs on the support inputs or the queries of a task.

    `part` is `"support"` or `"query"`, and `key` has the slot and domain of the task. Otherwise random draws for one
    part would be used for the other.
    """
    recorder, batch = Recorder(), subject.batch()
    subject.learner([recorder]).rows(batch)
    keys = [TaskKey(slot, domain) for slot, domain in enumerate(batch.domains)]
    begin_calls: list[tuple[TaskKey, str]] = []
    for call in recorder.calls:
        if call.stage == "begin":
            begin_calls.append((call.keys[0], call.part))
        elif call.stage == "encode" and (misplaced := _misplaced_inputs(call, batch, keys, begin_calls)):
            raise CheckFailure(f"the encoder runs on {misplaced}")
    expected = {(key, part) for key in keys for part in ("support", "query")}
    if missing := expected - set(begin_calls):
        key, part = min(missing, key=lambda pair: (pair[0].slot, pair[1]))
        raise CheckFailure(f"`homogenizers.begin({key}, {part!r})` is not called; it is called with {begin_calls}")
    if extra := set(begin_calls) - expected:
        raise CheckFailure(f"`homogenizers.begin` is called with {extra}; expected only {keys}")


def _misplaced_inputs(
    call: Call, batch: TaskBatch, keys: Sequence[TaskKey], begin_calls: list[tuple[TaskKey, str]]
) -> str:
    """Describe encoder inputs of another task or part than the last `begin`; empty if there are none."""
    if not begin_calls:
        return "inputs before the first `homogenizers.begin`"
    assert call.tensor is not None
    encoded = set(input_bits(call.tensor))
    for key, task in zip(keys, batch, strict=True):
        for part, inputs in (("support", task.support_x), ("query", task.query_x)):
            if (key, part) != begin_calls[-1] and encoded.intersection(input_bits(inputs)):
                return f"{part} inputs of task {key.slot} after `begin({begin_calls[-1][0]}, {begin_calls[-1][1]!r})`"
    return ""


@check("learners")
def transforms_queries(subject: LearnerSubject) -> None:
    """Query features `[1, queries, features]` pass through `transform` with the task's key, and then to the head.

    A learner may also transform several tasks at once, with one key per task. If `transform` sets all query features to
    zero, the outputs of a task must be the same for all queries.
    """
    recorder, batch = Recorder(), subject.batch()
    rows = subject.learner([recorder]).rows(batch)
    transformed = {
        key: tensor for call in recorder.calls if call.stage == "transform" for key, tensor in _features_by_key(call)
    }
    for slot, domain in enumerate(batch.domains):
        if (key := TaskKey(slot, domain)) not in transformed:
            raise CheckFailure(f"`transform` is not called with {key}; it is called with {list(transformed)}")
        if not torch.equal(transformed[key], rows.features[0][slot]):
            raise CheckFailure(
                f"for task {slot}, the input of `transform` differs from the query features that `rows` returns"
            )
    _require_equal_outputs(subject, ZeroFeatures(), "`transform` sets all query features to zero")


@check("learners")
def attachments_take_effect(subject: LearnerSubject) -> None:
    """`attach` has an effect on the rows: if its hooks zero all features, all queries have the same outputs.

    The encoder must be called as a module (or by `functional_call`), because only then its hooks run.
    """
    _require_equal_outputs(subject, ZeroEncoder(), "a hook from `attach` sets all features to zero")


def _features_by_key(call: Call) -> list[tuple[TaskKey, Tensor]]:
    assert call.tensor is not None
    if call.tensor.dim() != 3 or len(call.tensor) != len(call.keys):
        raise CheckFailure(
            f"`transform` receives features of the shape {tuple(call.tensor.shape)} and {len(call.keys)} keys; "
            "expected [tasks, queries, features], one key per task"
        )
    return list(zip(call.keys, call.tensor, strict=True))


def _require_equal_outputs(subject: LearnerSubject, homogenizer: Homogenizer, why: str) -> None:
    task = subject.task(3)
    learner = subject.learner([homogenizer])
    with learner.mode(training=True), learner.homogenizers.attached(learner.encoder), torch.enable_grad():
        outputs = learner.task_row(task, TaskKey(0, "domain 0")).outputs
    if float((outputs - outputs[:1]).abs().max()) > 1e-9 * float(outputs.abs().max()):
        raise CheckFailure(f"{why}, but the outputs of the queries differ", outputs=outputs)

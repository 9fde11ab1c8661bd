"""Checks that a learner calls the homogenizers' `attach`, `begin` and `transform`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradhomog.learners.tasks import TaskBatch
from gradhomog.step.homogenizer import Homogenizer
from gradhomog.step.step import TaskKey
from gradhomog.testing.check import CheckFailure, check
from gradhomog.testing.learners.auxiliary_homogenizers import Call, Recorder, ZeroEncoder, ZeroFeatures
from gradhomog.testing.learners.subject import LearnerSubject


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
    encoded = _inputs(call.tensor)
    for key, task in zip(keys, batch, strict=True):
        for part, inputs in (("support", task.support_x), ("query", task.query_x)):
            if (key, part) != begin_calls[-1] and encoded & _inputs(inputs):
                return f"{part} inputs of task {key.slot} after `begin({begin_calls[-1][0]}, {begin_calls[-1][1]!r})`"
    return ""


def _inputs(x: Tensor) -> set[bytes]:
    return {single.contiguous().numpy().tobytes() for single in x.detach()}


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

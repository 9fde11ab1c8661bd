"""Checks that a learner calls the homogenizers' stages: `attach`, `begin`, `transform`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradhomog.homogenizer import Homogenizer
from gradhomog.task_key import TaskKey
from gradhomog.tasks import TaskBatch
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.learners.probes import Call, Recorder, ZeroEncoder, ZeroFeatures
from gradhomog.testing.learners.subject import LearnerSubject


@check("learners")
def begins_parts(subject: LearnerSubject) -> None:
    """`begin(key, "support")` comes before the encoder runs on support inputs, `begin(key, "query")` before queries.

    For every task of a batch, with its slot and domain. Draws for one part would otherwise be used for the other.
    """
    recorder, batch = Recorder(), subject.batch()
    subject.learner([recorder]).rows(batch)
    keys = [TaskKey(slot, domain) for slot, domain in enumerate(batch.domains)]
    begun: list[tuple[TaskKey, str]] = []
    for call in recorder.calls:
        if call.stage == "begin":
            begun.append((call.keys[0], call.part))
        elif call.stage == "encode" and (found := _other_inputs(call, batch, keys, begun)):
            raise CheckFailure(f"the encoder runs on {found}")
    wanted = {(key, part) for key in keys for part in ("support", "query")}
    if missing := wanted - set(begun):
        key, part = min(missing, key=lambda one: (one[0].slot, one[1]))
        raise CheckFailure(f"`homogenizers.begin({key}, {part!r})` is never called; it was with {begun}")
    if extra := set(begun) - wanted:
        raise CheckFailure(f"`homogenizers.begin` is called with {extra}; the tasks are {keys}")


def _other_inputs(call: Call, batch: TaskBatch, keys: Sequence[TaskKey], begun: list[tuple[TaskKey, str]]) -> str:
    """Inputs of another task or part among those of the encoder, in words; empty if there are none."""
    if not begun:
        return "inputs before any `homogenizers.begin`"
    assert call.tensor is not None
    given = _inputs(call.tensor)
    for key, task in zip(keys, batch, strict=True):
        for part, inputs in (("support", task.support_x), ("query", task.query_x)):
            if (key, part) != begun[-1] and given & _inputs(inputs):
                return f"{part} inputs of task {key.slot} after `begin({begun[-1][0]}, {begun[-1][1]!r})`"
    return ""


def _inputs(x: Tensor) -> set[bytes]:
    return {one.contiguous().numpy().tobytes() for one in x.detach()}


@check("learners")
def transforms_queries(subject: LearnerSubject) -> None:
    """Query features go through `transform`, `[1, queries, features]` with the task's key, and then to the head.

    Or several tasks at once, with the key of each. With all query features transformed to zero, the outputs of a task
    are the same for all queries.
    """
    recorder, batch = Recorder(), subject.batch()
    rows = subject.learner([recorder]).rows(batch)
    given = {key: tensor for call in recorder.calls if call.stage == "transform" for key, tensor in _by_key(call)}
    for slot, domain in enumerate(batch.domains):
        if (key := TaskKey(slot, domain)) not in given:
            raise CheckFailure(f"`transform` is never called with {key}; it was with {list(given)}")
        if not torch.equal(given[key], rows.features[0][slot]):
            raise CheckFailure(
                f"`transform` received other features of task {slot} than `rows` returns as its query features"
            )
    _require_equal_outputs(subject, ZeroFeatures(), "`transform` makes all query features zero")


@check("learners")
def attachments_take_effect(subject: LearnerSubject) -> None:
    """`attach` takes effect in the rows: where it zeroes all features, queries have the same outputs.

    The encoder has to be called as a module (or by `functional_call`): its hooks run then.
    """
    _require_equal_outputs(subject, ZeroEncoder(), "what is attached makes all features zero")


def _by_key(call: Call) -> list[tuple[TaskKey, Tensor]]:
    assert call.tensor is not None
    if call.tensor.dim() != 3 or len(call.tensor) != len(call.keys):
        raise CheckFailure(
            f"`transform` receives features of the shape {tuple(call.tensor.shape)} with {len(call.keys)} keys; "
            "expected [tasks, queries, features], one key per task"
        )
    return list(zip(call.keys, call.tensor, strict=True))


def _require_equal_outputs(subject: LearnerSubject, homogenizer: Homogenizer, why: str) -> None:
    task = subject.task(3)
    made = subject.learner([homogenizer])
    with made.mode(training=True), made.homogenizers.attached(made.encoder), torch.enable_grad():
        outputs = made.task_row(task, TaskKey(0, "domain 0")).outputs
    if float((outputs - outputs[:1]).abs().max()) > 1e-9 * float(outputs.abs().max()):
        raise CheckFailure(f"{why}, and yet the outputs of the queries differ", outputs=outputs)

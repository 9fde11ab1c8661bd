"""What a learner owes to homogenizers while it forms rows: it tells them what comes, and what they do counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradhomog.evidence import TaskKey
from gradhomog.homogenizer import Homogenizer
from gradhomog.tasks import TaskBatch
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.learners.spies import Blind, Erase, Note, Spy
from gradhomog.testing.learners.subject import LearnerSubject


@check("learners")
def begins_parts(subject: LearnerSubject) -> None:
    """`begin(key, "support")` comes before the encoder runs on support inputs, `begin(key, "query")` before queries.

    For every task of a batch, with its slot and domain. What is drawn for a part would else be used for the other.
    """
    spy, batch = Spy(), subject.batch()
    subject.learner([spy]).rows(batch)
    keys = [TaskKey(slot, domain) for slot, domain in enumerate(batch.domains)]
    begun: list[tuple[TaskKey, str]] = []
    for note in spy.notes:
        if note.stage == "begin":
            begun.append((note.keys[0], note.part))
        elif note.stage == "encode" and (found := _strangers(note, batch, keys, begun)):
            raise CheckFailure(f"the encoder runs on {found}")
    wanted = {(key, part) for key in keys for part in ("support", "query")}
    if missing := wanted - set(begun):
        key, part = min(missing, key=lambda one: (one[0].slot, one[1]))
        raise CheckFailure(f"`homogenizers.begin({key}, {part!r})` is never called; it was with {begun}")
    if extra := set(begun) - wanted:
        raise CheckFailure(f"`homogenizers.begin` is called with {extra}; the tasks are {keys}")


def _strangers(note: Note, batch: TaskBatch, keys: Sequence[TaskKey], begun: list[tuple[TaskKey, str]]) -> str:
    """Inputs of another task or part among those that the encoder is given, in words; empty if there are none."""
    if not begun:
        return "inputs before any `homogenizers.begin`"
    assert note.tensor is not None
    given = _inputs(note.tensor)
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
    spy, batch = Spy(), subject.batch()
    rows = subject.learner([spy]).rows(batch)
    given = {key: tensor for note in spy.notes if note.stage == "transform" for key, tensor in _by_key(note)}
    for slot, domain in enumerate(batch.domains):
        if (key := TaskKey(slot, domain)) not in given:
            raise CheckFailure(f"`transform` is never called with {key}; it was with {list(given)}")
        if not torch.equal(given[key], rows.features[0][slot]):
            raise CheckFailure(
                f"`transform` was given other features of task {slot} than `rows` hands out as its query features"
            )
    _judge_all_alike(subject, Erase(), "`transform` makes all query features zero")


@check("learners")
def attachments_count(subject: LearnerSubject) -> None:
    """What `attach` does to the encoder takes effect: where it erases all features, queries have the same outputs.

    The encoder has to be called as a module (or by `functional_call`): its hooks run then.
    """
    _judge_all_alike(subject, Blind(), "what is attached makes all features zero")


def _by_key(note: Note) -> list[tuple[TaskKey, Tensor]]:
    assert note.tensor is not None
    if note.tensor.dim() != 3 or len(note.tensor) != len(note.keys):
        raise CheckFailure(
            f"`transform` is given features of the shape {tuple(note.tensor.shape)} with {len(note.keys)} keys; "
            "expected [tasks, queries, features], one key per task"
        )
    return list(zip(note.keys, note.tensor, strict=True))


def _judge_all_alike(subject: LearnerSubject, homogenizer: Homogenizer, why: str) -> None:
    task = subject.task(3)
    made = subject.learner([homogenizer])
    with made.mode(training=True), made.homogenizers.attached(made.encoder), torch.enable_grad():
        outputs = made.task_row(task, TaskKey(0, "domain 0")).outputs
    if float((outputs - outputs[:1]).abs().max()) > 1e-9 * float(outputs.abs().max()):
        raise CheckFailure(f"{why}, and yet the outputs of the queries differ", outputs=outputs)

"""What must stay as it was: the learner, the tasks, everything global; also when something fails in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradhomog.learners import Learner
from gradhomog.reports import TaskRows
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import same
from gradhomog.testing.generators import seeded
from gradhomog.testing.learners.picture import unchanged
from gradhomog.testing.learners.spies import Note, Spy
from gradhomog.testing.learners.subject import LearnerSubject


def _mixed(subject: LearnerSubject, homogenizers: Any = None) -> Learner:
    """With batch normalization if it takes that, modules in different modes, and a `.grad` here and there."""
    made = subject.learner(homogenizers, norm=subject.takes_norm)
    made.encoder.train()
    made.encoder.get_submodule("1").eval()
    made.head.eval()
    first = made.parameters()[0]
    first.grad = torch.ones_like(first)
    return made


@check("learners")
def nothing_changes(subject: LearnerSubject) -> None:
    """`rows`, `evaluate` and `predict` leave the learner, the tasks and the global generators as they were.

    Parameters, `.grad`, buffers, modes, hooks and attributes of the modules, the gradient mode, the default dtype.
    """
    batch = subject.batch()
    task, given = batch[0], [batch.support_x, batch.support_y, batch.query_x, batch.query_y]
    before = [tensor.clone() for tensor in given]
    calls: dict[str, Callable[[Learner], Any]] = {
        "rows": lambda made: made.rows(batch),
        "evaluate": lambda made: made.evaluate(batch),
        "predict": lambda made: made.predict(task.support_x, task.support_y, task.query_x),
    }
    for name, call in calls.items():
        for homogenizers in (None, [Spy()]):
            made = _mixed(subject, homogenizers)
            for seed in (11, 12):  # who seeds a global generator himself does not leave both as they were
                with seeded(seed), unchanged(made, f"after `{name}`"):
                    call(made)
        for tensor, was in zip(given, before, strict=True):
            same(tensor, was, f"the tasks' tensors after `{name}`")


class _Broken(Exception):
    """Raised on purpose."""


class _At:
    """Raises at a call, counted from 1; at none while `call` is 0."""

    def __init__(self) -> None:
        self.call = self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == self.call:
            raise _Broken

    def arm(self, call: int) -> None:
        self.call, self.calls = call, 0


class _Trap(Spy):
    """A homogenizer that raises at the n-th call of any of its stages."""

    def __init__(self, at: _At) -> None:
        super().__init__()
        self.at = at

    def act(self, note: Note) -> None:
        self.at()


@check("learners")
def restored_after_failure(subject: LearnerSubject) -> None:
    """A step in which encoder, head, loss or a homogenizer raises tells it, and leaves everything as it was.

    In a support pass, in a query pass, in the first task and in the second: parameters, `.grad`, buffers, modes, hooks,
    the outer optimizer, global generators. The next rows are those of a learner to which nothing has happened.
    """
    batch = subject.batch(tasks=2)
    for where in ("the encoder", "the head", "the loss", "a homogenizer"):
        at = _At()
        made = _mixed(subject, [_Trap(at)] if where == "a homogenizer" else None)
        _set(made, where, at)
        outer = torch.optim.Adam(made.parameters(), lr=0.05)
        expected = made.rows(batch)
        at.arm(0)
        made.homogenizers.homogenize(expected.jacobian, expected.losses)  # counts the stages of a whole step
        made.rows(batch)
        for call in _chosen(at.calls):
            at.arm(call)
            when = f"after {where} raised at call {call} of a step of two tasks"
            with unchanged(made, when, outer):
                _fail(made, batch, outer, when)
            at.arm(0)
            _judge_alike(made.rows(batch), expected, when)


def _set(made: Learner, where: str, at: _At) -> None:
    if where in ("the encoder", "the head"):
        # A function, not the object: a copy of the module shares it, and so the count.
        module = made.encoder if where == "the encoder" else made.head
        module.register_forward_pre_hook(lambda *_: at())
    if where == "the loss":
        loss = made.loss

        def failing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            at()
            return loss(outputs, targets)

        made.loss = failing


def _chosen(calls: int) -> Sequence[int]:
    """The first, the last, and those around the border of the two tasks."""
    half = calls // 2
    return sorted({call for call in (1, half, half + 1, calls - 1, calls) if 1 <= call <= calls})


def _fail(made: Learner, batch: Any, outer: torch.optim.Optimizer, when: str) -> None:
    try:
        made.step(batch, outer)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, _Broken):
                return
            cause = cause.__cause__ or cause.__context__
        raise CheckFailure(f"{when}: it is told as {type(error).__name__}, without its cause: {error}") from error
    raise CheckFailure(f"{when}: the step went on as if nothing had happened")


def _judge_alike(found: TaskRows, expected: TaskRows, when: str) -> None:
    same(found.losses, expected.losses, f"the next losses {when}")
    for name, block in expected.jacobian.items():
        same(found.jacobian[name], block, f"the next rows {when}, `{name}`")

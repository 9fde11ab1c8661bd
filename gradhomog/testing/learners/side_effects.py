"""Checks that nothing but a step changes the learner, the tasks or the process, also when a step fails halfway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradhomog.learners import Learner
from gradhomog.reports import TaskRows
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import same
from gradhomog.testing.learners.probes import Call, Recorder, RowRecorder
from gradhomog.testing.learners.subject import LearnerSubject
from gradhomog.testing.snapshots import changed_names, global_generators, module_structure, seeded, snapshot


@contextmanager
def unchanged(made: Learner, when: str, outer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Raise unless the statements within the context, if they end without an error, leave the learner as it was."""
    before = _state(made, outer)
    yield
    if changed := changed_names(before, _state(made, outer)):
        more = f" (and {len(changed) - 4} more)" if len(changed) > 4 else ""
        raise CheckFailure(f"{when}, not as before: {', '.join(changed[:4])}{more}")


def _state(made: Learner, outer: torch.optim.Optimizer | None = None) -> dict[str, object]:
    """Parameters, buffers, gradients, modes, hooks, the optimizer, global generators and switches, by a description."""
    found: dict[str, object] = {}
    for part, module in {"encoder": made.encoder, "head": made.head, "learner": made.own}.items():
        for name, parameter in module.named_parameters():
            key = f"{part}.{name}"
            found[f"the parameter `{key}`"] = snapshot(parameter)
            found[f"the identity of the parameter `{key}`"] = id(parameter)
            found[f"`.grad` of `{key}`"] = snapshot(parameter.grad)
            found[f"`requires_grad` of `{key}`"] = parameter.requires_grad
        for name, buffer in module.named_buffers():
            found[f"the buffer `{part}.{name}`"] = snapshot(buffer)
        found[f"the modes of the {part}"] = [one.training for one in module.modules()]
        found[f"the hooks and attributes of the {part}"] = module_structure(module)
    if outer is not None:
        found["the outer optimizer"] = snapshot(outer.state_dict())
    for name, state in global_generators().items():
        found[f"the global generator of {name}"] = state
    found["the gradient mode"] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    found["the default dtype"] = torch.get_default_dtype()
    return found


def _with_mixed_modes(subject: LearnerSubject, homogenizers: Any = None) -> Learner:
    """With batch normalization if it accepts that, modules in different modes, and one `.grad`."""
    made = subject.learner(homogenizers, norm=subject.accepts_batch_norm)
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
        for homogenizers in (None, [Recorder()]):
            made = _with_mixed_modes(subject, homogenizers)
            for seed in (11, 12):  # seeding a global generator changes at least one of them
                with seeded(seed), unchanged(made, f"after `{name}`"):
                    call(made)
        for tensor, was in zip(given, before, strict=True):
            same(tensor, was, f"the tasks' tensors after `{name}`")


class _Broken(Exception):
    """Raised on purpose."""


class _Failure:
    """Raises at one call, counted from 1; at none while `call` is 0."""

    def __init__(self) -> None:
        self.call = self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == self.call:
            raise _Broken

    def arm(self, call: int) -> None:
        self.call, self.calls = call, 0


class _FailingHomogenizer(Recorder):
    """Raises at the n-th call of any of its stages."""

    def __init__(self, failure: _Failure) -> None:
        super().__init__()
        self.failure = failure

    def on_call(self, call: Call) -> None:
        self.failure()


@check("learners")
def restored_after_failure(subject: LearnerSubject) -> None:
    """A step in which encoder, head, loss or a homogenizer raises passes the error on, and leaves everything as it was.

    In a support pass, in a query pass, in the first task and in the second: parameters, `.grad`, buffers, modes, hooks,
    the outer optimizer, global generators. The next rows are those of a learner without the failure.
    """
    batch = subject.batch(tasks=2)
    for where in ("the encoder", "the head", "the loss", "a homogenizer"):
        failure = _Failure()
        trap = _FailingHomogenizer(failure)
        made = _with_mixed_modes(subject, [trap, RowRecorder(trap)] if where == "a homogenizer" else None)
        _install(made, where, failure)
        outer = torch.optim.Adam(made.parameters(), lr=0.05)
        expected = made.rows(batch)
        failure.arm(0)
        made.homogenizers.combine(expected.jacobian, expected.losses)  # counts the stages of a whole step
        made.rows(batch)
        for call in _chosen(failure.calls):
            failure.arm(call)
            when = f"after {where} raised at call {call} of a step of two tasks"
            with unchanged(made, when, outer):
                _fail(made, batch, outer, when)
            failure.arm(0)
            _require_same_rows(made.rows(batch), expected, when)


def _install(made: Learner, where: str, failure: _Failure) -> None:
    if where in ("the encoder", "the head"):
        # A function, not the object: a copy of the module shares it, and with it the count.
        module = made.encoder if where == "the encoder" else made.head
        module.register_forward_pre_hook(lambda *_: failure())
    if where == "the loss":
        loss = made.loss

        def failing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            failure()
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
        raise CheckFailure(f"{when}: it raises {type(error).__name__}, without the cause: {error}") from error
    raise CheckFailure(f"{when}: the step continued without an error")


def _require_same_rows(found: TaskRows, expected: TaskRows, when: str) -> None:
    same(found.losses, expected.losses, f"the next losses {when}")
    for name, block in expected.jacobian.items():
        same(found.jacobian[name], block, f"the next rows {when}, `{name}`")

"""Checks that only a successful step changes the learner, the tasks or the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradhomog.learners.learner import Learner
from gradhomog.learners.results import TaskRows
from gradhomog.testing.check import CheckFailure, check
from gradhomog.testing.comparisons import require_equal
from gradhomog.testing.learners.auxiliary_homogenizers import Call, Recorder, RowRecorder
from gradhomog.testing.learners.subject import LearnerSubject
from gradhomog.testing.snapshots import (
    changed_names,
    global_generators,
    module_structure,
    seeded_global_generators,
    snapshot,
)


@contextmanager
def require_unchanged(learner: Learner, when: str, outer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Raise if the statements in the context end without an error and change the learner or the process."""
    before = _state(learner, outer)
    yield
    if changed := changed_names(before, _state(learner, outer)):
        more = f" (and {len(changed) - 4} more)" if len(changed) > 4 else ""
        raise CheckFailure(f"{when}, these have changed: {', '.join(changed[:4])}{more}")


def _state(learner: Learner, outer: torch.optim.Optimizer | None = None) -> dict[str, object]:
    """Parameters, buffers, gradients, modes, hooks, optimizer, global generators and settings, by description."""
    state: dict[str, object] = {}
    for part, module in {"encoder": learner.encoder, "head": learner.head, "learner": learner.extra_modules}.items():
        for name, parameter in module.named_parameters():
            key = f"{part}.{name}"
            state[f"the parameter `{key}`"] = snapshot(parameter)
            state[f"the identity of the parameter `{key}`"] = id(parameter)
            state[f"`.grad` of `{key}`"] = snapshot(parameter.grad)
            state[f"`requires_grad` of `{key}`"] = parameter.requires_grad
        for name, buffer in module.named_buffers():
            state[f"the buffer `{part}.{name}`"] = snapshot(buffer)
        state[f"the modes of the {part}"] = [submodule.training for submodule in module.modules()]
        state[f"the hooks and attributes of the {part}"] = module_structure(module)
    if outer is not None:
        state["the outer optimizer"] = snapshot(outer.state_dict())
    for name, generator_state in global_generators().items():
        state[f"the global generator of {name}"] = generator_state
    state["the gradient mode"] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    state["the default dtype"] = torch.get_default_dtype()
    return state


def _with_mixed_modes(subject: LearnerSubject, homogenizers: Any = None) -> Learner:
    """A learner with modules in different modes, one `.grad`, and batch normalization if it supports that."""
    learner = subject.learner(homogenizers, norm=subject.accepts_batch_norm)
    learner.encoder.train()
    learner.encoder.get_submodule("1").eval()
    learner.head.eval()
    first = learner.parameters()[0]
    first.grad = torch.ones_like(first)
    return learner


@check("learners")
def no_side_effects(subject: LearnerSubject) -> None:
    """`rows`, `evaluate` and `predict` do not change the learner, the tasks or the global generators.

    The check compares parameters, `.grad`, buffers, modes, hooks and attributes of the modules, the gradient mode and
    the default dtype.
    """
    batch = subject.batch()
    task, inputs = batch[0], [batch.support_x, batch.support_y, batch.query_x, batch.query_y]
    before = [tensor.clone() for tensor in inputs]
    calls: dict[str, Callable[[Learner], Any]] = {
        "rows": lambda learner: learner.rows(batch),
        "evaluate": lambda learner: learner.evaluate(batch),
        "predict": lambda learner: learner.predict(task.support_x, task.support_y, task.query_x),
    }
    for name, call in calls.items():
        for homogenizers in (None, [Recorder()]):
            learner = _with_mixed_modes(subject, homogenizers)
            for seed in (11, 12):  # seeding a global generator changes at least one of them
                with seeded_global_generators(seed), require_unchanged(learner, f"after `{name}`"):
                    call(learner)
        for tensor, original in zip(inputs, before, strict=True):
            require_equal(tensor, original, f"the tasks' tensors after `{name}`")


class _DeliberateError(Exception):
    """Raised by the check itself."""


class _Failure:
    """A callable that raises at its n-th call, n = `call` ≥ 1; never while `call` is 0."""

    def __init__(self) -> None:
        self.call = self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == self.call:
            raise _DeliberateError

    def arm(self, call: int) -> None:
        self.call, self.calls = call, 0


class _FailingHomogenizer(Recorder):
    """Raises at the n-th call of its stages."""

    def __init__(self, failure: _Failure) -> None:
        super().__init__()
        self.failure = failure

    def on_call(self, call: Call) -> None:
        self.failure()


@check("learners")
def restored_after_failure(subject: LearnerSubject) -> None:
    """If encoder, head, loss or a homogenizer raises in a step, the step raises and changes nothing.

    Errors are raised in support and query passes of the first and the second task. Parameters, `.grad`, buffers, modes,
    hooks, the outer optimizer and the global generators are compared. The next rows must be those of a learner without
    the error.
    """
    batch = subject.batch(tasks=2)
    for where in ("the encoder", "the head", "the loss", "a homogenizer"):
        failure = _Failure()
        failing = _FailingHomogenizer(failure)
        learner = _with_mixed_modes(subject, [failing, RowRecorder(failing)] if where == "a homogenizer" else None)
        _install_failure(learner, where, failure)
        outer = torch.optim.Adam(learner.parameters(), lr=0.05)
        expected = learner.rows(batch)
        failure.arm(0)
        learner.homogenizers.combine(
            expected.jacobian, expected.losses, domains=batch.domains
        )  # so that `failure.calls` counts all stages of a step
        learner.rows(batch)
        for call in _failing_calls(failure.calls):
            failure.arm(call)
            when = f"after {where} raised at call {call} of a step of two tasks"
            with require_unchanged(learner, when, outer):
                _require_step_raises(learner, batch, outer, when)
            failure.arm(0)
            _require_same_rows(learner.rows(batch), expected, when)


def _install_failure(learner: Learner, where: str, failure: _Failure) -> None:
    if where in ("the encoder", "the head"):
        # A function instead of the object: copies of the module then share one count.
        module = learner.encoder if where == "the encoder" else learner.head
        module.register_forward_pre_hook(lambda *_: failure())
    if where == "the loss":
        loss = learner.loss

        def failing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            failure()
            return loss(outputs, targets)

        learner.loss = failing


def _failing_calls(calls: int) -> Sequence[int]:
    """Numbers of the first calls, the last calls, and the calls where the second task starts."""
    half = calls // 2
    return sorted({call for call in (1, half, half + 1, calls - 1, calls) if 1 <= call <= calls})


def _require_step_raises(learner: Learner, batch: Any, outer: torch.optim.Optimizer, when: str) -> None:
    try:
        learner.step(batch, outer)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, _DeliberateError):
                return
            cause = cause.__cause__ or cause.__context__
        raise CheckFailure(
            f"{when}: the step raises {type(error).__name__} without the original error as its cause: {error}"
        ) from error
    raise CheckFailure(f"{when}: the step does not raise")


def _require_same_rows(found: TaskRows, expected: TaskRows, when: str) -> None:
    require_equal(found.losses, expected.losses, f"the next losses {when}")
    for name, block in expected.jacobian.items():
        require_equal(found.jacobian[name], block, f"the next rows {when}, `{name}`")

"""Checks of a training step: it uses the mean of the rows or the homogenized direction, and alone changes a learner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from gradhomog.errors import GradhomogError, NonfiniteError
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import TaskBatch
from gradhomog.step.pipelines import Pipeline, pipeline
from gradhomog.testing import snapshots
from gradhomog.testing.assertions import error_of, require_all_equal, require_close, require_equal
from gradhomog.testing.check_results import CheckFailure, check
from gradhomog.testing.probing_homogenizers import Call, InputDependentWeights, Recorder, RowRecorder
from gradhomog.testing.subjects import LearnerSubject

RTOL, ATOL = 1e-9, 1e-12


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.05)


def _require_steps(subject: LearnerSubject, learner: Learner, pipe: Pipeline) -> None:
    """Compare three steps with those of copied parameters whose `.grad` is computed by a second pipeline."""
    copies = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in learner.named_parameters().items()}
    outer, expected_outer = _adam(learner.parameters()), _adam(copies.values())
    for number in range(3):
        for parameter in learner.parameters():
            parameter.grad = torch.full_like(parameter, 7.0)  # left from an earlier step; must be ignored
        batch = subject.batch(seed=number)
        rows, report = learner.rows(batch), learner.step(batch, outer)
        require_close(report.losses, rows.losses, "the losses in the step's report", rtol=RTOL, atol=ATOL)
        direction: Any = pipe.homogenize(
            rows.jacobian, rows.losses, domains=batch.domains, features=rows.features,
            feature_grads=rows.feature_grads, targets=batch.query_y,
        ).direction  # fmt: skip
        for name, parameter in copies.items():
            parameter.grad = direction[name].clone()
        expected_outer.step()
        for name, parameter in learner.named_parameters().items():
            what = f"`{name}` after {number + 1} steps of Adam"
            require_close(parameter.detach(), copies[name].detach(), what, rtol=RTOL, atol=ATOL)


@check("learners")
def steps_on_mean(subject: LearnerSubject) -> None:
    """Without homogenizers, the outer optimizer steps with the mean of the rows and ignores previous `.grad` values."""
    _require_steps(subject, subject.learner(), Pipeline())


@check("learners")
def steps_homogenized(subject: LearnerSubject) -> None:
    """With a homogenizer, the outer optimizer steps with `homogenize(rows, …)`, and its state is kept between steps.

    Losses, domains, features, feature gradients and targets must be passed: the weights of the test homogenizer depend
    on all of them.
    """
    _require_steps(subject, subject.learner([InputDependentWeights()]), pipeline([InputDependentWeights()]))


@check("learners")
def nonfinite_reported(subject: LearnerSubject) -> None:
    """A task with NaN in its inputs raises a `NonfiniteError`, and nothing changes.

    NaN is put in the support set, unless rows do not depend on it, and in the query set. With `nonfinite="drop"` the
    step must be that of the other tasks.
    """
    batch = subject.batch()
    for part in ("support_x", "query_x"):
        broken = TaskBatch(**{**vars(batch), part: getattr(batch, part).clone()})
        getattr(broken, part)[1, 0] = torch.nan
        if part == "support_x" and _rows_are_equal(subject, broken, batch):
            continue
        learner = subject.learner()
        outer = _adam(learner.parameters())
        learner.step(batch, outer)
        with _require_unchanged(learner, f"after a task with NaN in `{part}`", outer):
            error = error_of(partial(learner.step, broken, outer), GradhomogError)
            if error is None:
                raise CheckFailure(f"a step with NaN in `{part}` does not raise")
            if not isinstance(error, NonfiniteError):
                raise CheckFailure(
                    f"NaN in `{part}` raises {type(error).__name__}, not NonfiniteError: {error}"
                ) from error
        _require_drop(subject, batch, broken, part)


def _rows_are_equal(subject: LearnerSubject, broken: TaskBatch, batch: TaskBatch) -> bool:
    """True if the rows of both batches are equal, as for a learner without inner steps."""
    try:
        found = subject.learner().rows(broken).jacobian
    except NonfiniteError:
        return False
    return all(torch.equal(found[name], block) for name, block in subject.learner().rows(batch).jacobian.items())


def _require_drop(subject: LearnerSubject, batch: TaskBatch, broken: TaskBatch, part: str) -> None:
    learner, others = subject.learner(nonfinite="drop"), subject.learner()
    learner.step(broken, torch.optim.SGD(learner.parameters(), lr=0.1))
    others.step([batch[0], batch[2]], torch.optim.SGD(others.parameters(), lr=0.1))
    for name, parameter in others.named_parameters().items():
        what = f"`{name}` after a step without the task with NaN in `{part}`"
        require_close(learner.named_parameters()[name].detach(), parameter.detach(), what, rtol=RTOL, atol=ATOL)


# -- side effects ----------------------------------------------------------------------------------------------------


@contextmanager
def _require_unchanged(learner: Learner, when: str, outer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Raise if the statements in the context end without an error and change the learner or the process."""
    before = _state(learner, outer)
    yield
    if changed := snapshots.changed_names(before, _state(learner, outer)):
        more = f" (and {len(changed) - 4} more)" if len(changed) > 4 else ""
        raise CheckFailure(f"{when}, these have changed: {', '.join(changed[:4])}{more}")


def _state(learner: Learner, outer: torch.optim.Optimizer | None = None) -> dict[str, object]:
    """Parameters, buffers, gradients, modes, hooks, optimizer, global generators and settings, by description."""
    state: dict[str, object] = {}
    for part, module in {"encoder": learner.encoder, "head": learner.head, "learner": learner.extra_modules}.items():
        for name, parameter in module.named_parameters():
            key = f"{part}.{name}"
            state[f"the parameter `{key}`"] = snapshots.snapshot(parameter)
            state[f"the identity of the parameter `{key}`"] = id(parameter)
            state[f"`.grad` of `{key}`"] = snapshots.snapshot(parameter.grad)
            state[f"`requires_grad` of `{key}`"] = parameter.requires_grad
        for name, buffer in module.named_buffers():
            state[f"the buffer `{part}.{name}`"] = snapshots.snapshot(buffer)
        state[f"the modes of the {part}"] = [submodule.training for submodule in module.modules()]
        state[f"the hooks and attributes of the {part}"] = snapshots.module_structure(module)
    if outer is not None:
        state["the outer optimizer"] = snapshots.snapshot(outer.state_dict())
    for name, generator_state in snapshots.global_generators().items():
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
                with snapshots.seeded_global_generators(seed), _require_unchanged(learner, f"after `{name}`"):
                    call(learner)
        for tensor, original in zip(inputs, before, strict=True):
            require_equal(tensor, original, f"the tasks' tensors after `{name}`")


class _DeliberateError(Exception):
    """Raised by the check itself."""


class _Failure(Recorder):
    """A callable, and a homogenizer, that raises at its n-th call, n = `failing` ≥ 1; never while `failing` is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = self.count = 0

    def __call__(self, *_: object) -> None:
        self.count += 1
        if self.count == self.failing:
            raise _DeliberateError

    def arm(self, call: int) -> None:
        self.failing, self.count = call, 0

    def on_call(self, call: Call) -> None:
        self()


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
        learner = _with_mixed_modes(subject, [failure, RowRecorder(failure)] if where == "a homogenizer" else None)
        _install_failure(learner, where, failure)
        outer = torch.optim.Adam(learner.parameters(), lr=0.05)
        expected = learner.rows(batch)
        failure.arm(0)
        learner.homogenizers.combine(
            expected.jacobian, expected.losses, domains=batch.domains
        )  # so that `failure.count` counts all stages of a step
        learner.rows(batch)
        for call in _failing_calls(failure.count):
            failure.arm(call)
            when = f"after {where} raised at call {call} of a step of two tasks"
            with _require_unchanged(learner, when, outer):
                _require_step_raises(learner, batch, outer, when)
            failure.arm(0)
            found = learner.rows(batch)
            require_equal(found.losses, expected.losses, f"the next losses {when}")
            require_all_equal(found.jacobian, expected.jacobian, f"the next rows {when}, `{{}}`")


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


def _require_step_raises(learner: Learner, batch: TaskBatch, outer: torch.optim.Optimizer, when: str) -> None:
    error = cause = error_of(lambda: learner.step(batch, outer), Exception)
    if error is None:
        raise CheckFailure(f"{when}: the step does not raise")
    while not isinstance(cause, _DeliberateError):
        if cause is None:
            raise CheckFailure(
                f"{when}: the step raises {type(error).__name__} without the original error as its cause: {error}"
            ) from error
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]

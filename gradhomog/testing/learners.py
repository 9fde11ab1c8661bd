"""Checks of learners: rows, stages of homogenizers, training steps, side effects, meta-test."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, get_args

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError, NonfiniteError
from gradhomog.learners.learner import Learner
from gradhomog.learners.results import TaskRow
from gradhomog.learners.scoring import accuracy
from gradhomog.learners.tasks import TaskBatch
from gradhomog.step.homogenizer import Homogenizer
from gradhomog.step.pipelines import Pipeline, pipeline
from gradhomog.step.step import TaskKey
from gradhomog.testing import snapshots
from gradhomog.testing.assertions import (
    central_difference,
    error_of,
    require_all_equal,
    require_close,
    require_derivative,
    require_equal,
    require_exact_rows,
    require_tensor,
)
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check, describe_failure
from gradhomog.testing.small_network import (
    WAYS,
    InputDependentWeights,
    Recorder,
    ShiftedFeatures,
    StageCall,
    ZeroEncoder,
    ZeroFeatures,
    network,
)
from gradhomog.testing.snapshots import input_bits, module_values
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
            f"{describe_failure(subject.row_errors['classification'])}"
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
                f"{task_type} is rejected by {describe_failure(error)}: raise a GradhomogError whose message states "
                f"that {task_type} is not supported"
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
            require_tensor(f"the rows of `{name}`", block, dtype)
        require_tensor("`losses` of three tasks", rows.losses, torch.float64, (3,))


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
    require_tensor("`loss`", row.loss, None, ())
    require_tensor("`outputs`", row.outputs, dtype, (queries, row.outputs.shape[-1]))
    for name, value in gradients.items():
        require_tensor(f"the gradient of `{name}`", value, dtype)
    if not len(row.features) == len(row.feature_grads) == 1:
        raise CheckFailure(
            f"without a transforming homogenizer, `task_row` returns {len(row.features)} features and "
            f"{len(row.feature_grads)} feature_grads; expected one of each: the result of homogenizers.transform and "
            "the gradient of the loss w.r.t. it"
        )
    require_tensor("`features`", row.features[0], dtype, (queries, row.features[0].shape[-1]))
    require_tensor("`feature_grads`", row.feature_grads[0], dtype, tuple(row.features[0].shape))


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
    call: StageCall, batch: TaskBatch, keys: Sequence[TaskKey], begin_calls: list[tuple[TaskKey, str]]
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


def _features_by_key(call: StageCall) -> list[tuple[TaskKey, Tensor]]:
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

    def on_call(self, call: StageCall) -> None:
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
        learner = _with_mixed_modes(subject, [failure] if where == "a homogenizer" else None)
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


@check("learners")
def homogenizers_removed(subject: LearnerSubject) -> None:
    """`evaluate` and `predict` do not call homogenizers and predict the same as a learner without homogenizers.

    Checked after two steps with homogenizers that zero all features, with gradients enabled and under `no_grad`.
    """
    recorder, batch = Recorder(), subject.batch(seed=3)
    learner = subject.learner([recorder, ZeroEncoder(), ZeroFeatures()])
    outer = torch.optim.Adam(learner.parameters(), lr=0.05)
    for number in range(2):
        learner.step(subject.batch(seed=number), outer)
    bare = subject.learner(seed=1)
    bare.load_state_dict({**learner.state_dict(), "homogenizers": bare.homogenizers.state_dict()})
    recorder.calls.clear()
    for task in batch:
        arguments = task.support_x, task.support_y, task.query_x
        expected = bare.predict(*arguments)
        what = "a prediction after training with homogenizers"
        require_equal(learner.predict(*arguments), expected, what)
        with torch.no_grad():
            require_equal(learner.predict(*arguments), expected, f"{what}, under no_grad")
    if learner.evaluate(batch) != bare.evaluate(batch):
        raise CheckFailure(
            "`evaluate` after training with homogenizers gives other scores than the learner without homogenizers"
        )
    if recorder.calls:
        stages = sorted({call.stage for call in recorder.calls})
        raise CheckFailure(f"`evaluate` or `predict` calls the homogenizers: {stages}")


@check("learners")
def scores_independent_of_batch(subject: LearnerSubject) -> None:
    """The score of a task does not depend on the other tasks that are evaluated with it, nor on their order.

    Its loss and score must be those of the outputs of `predict`, and these outputs must not require grad.
    """
    batch, learner = subject.batch(), subject.learner()
    together, reversed_order = learner.evaluate(batch), learner.evaluate([batch[2], batch[1], batch[0]])
    for slot in range(3):
        task = batch[slot]
        alone = subject.learner().evaluate([task])
        outputs = learner.predict(task.support_x, task.support_y, task.query_x)
        if outputs.requires_grad:
            raise CheckFailure("`predict` returns outputs that require grad: detach them")
        score = accuracy(outputs, task.query_y)
        if score is None:
            score = float((outputs - task.query_y).square().mean())
        predicted = [score, float(learner.loss(outputs, task.query_y))]
        found = torch.tensor([together.scores[slot], together.losses[slot]], dtype=torch.float64)
        for how, other in (
            ("of the same task, evaluated alone", [alone.scores[0], alone.losses[0]]),
            ("with the tasks in reversed order", [reversed_order.scores[2 - slot], reversed_order.losses[2 - slot]]),
            ("from the outputs of `predict`", predicted),
        ):
            what = f"score and loss of task {slot}, compared with those {how}"
            require_close(found, torch.tensor(other, dtype=torch.float64), what, rtol=1e-9, atol=1e-12)


@check("learners")
def saliency(subject: LearnerSubject) -> None:
    """Predictions are differentiable w.r.t. the queries, as saliency maps require, or detached.

    The derivative is compared with central differences. `adapted_outputs` must not raise if `query_x` requires grad.
    """
    learner, task = subject.learner(), subject.task(4)
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(task.query_x.shape, generator=generator, dtype=torch.float64)

    def value(query_x: Tensor) -> Tensor:
        with learner.mode(training=False):
            outputs = learner.adapted_outputs(task.support_x, task.support_y, query_x)
        return (outputs * torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)).sum()

    query_x = task.query_x.clone().requires_grad_()
    outputs = value(query_x)
    if not outputs.requires_grad:
        raise NotApplicable("predictions are detached from the graph: no saliency maps for this learner")
    gradient = torch.autograd.grad(outputs, query_x, allow_unused=True)[0]
    found = 0.0 if gradient is None else float((gradient * along).sum())
    expected = float(central_difference(lambda t: value(task.query_x + t * along)))
    require_derivative(found, expected, "the derivative of a prediction w.r.t. the queries is")


# -- frozen parameters and batch normalization -----------------------------------------------------------------------


@check("learners")
def frozen_parameters(subject: LearnerSubject) -> None:
    """Parameters with `requires_grad=False` are constants: they have no row, and no step changes them.

    Neither meta-steps nor inner steps may change them; their values are compared whenever the layer runs. The check
    freezes one layer, one layer after the learner was made, and the whole encoder. A learner may reject frozen
    parameters by a `GradhomogError`.
    """
    for part, late in (("encoder.0", False), ("encoder.0", True), ("encoder", False)):
        encoder, head = network(0, subject.targets or WAYS)
        layer = encoder if part == "encoder" else encoder.get_submodule("0")
        try:
            if not late:
                layer.requires_grad_(False)
            learner = subject.make_for(encoder, head)
            layer.requires_grad_(False)
            rows = learner.rows(subject.batch()).jacobian
        except GradhomogError:
            continue  # the learner rejects frozen parameters
        when = f"with `{part}` frozen{' after the learner was made' if late else ''}"
        if frozen := [name for name in rows if name.startswith(f"{part}.")]:
            raise CheckFailure(f"{when}, there are rows for {', '.join(frozen)}")
        _require_constant(subject, learner, layer, when)


def _require_constant(subject: LearnerSubject, learner: Learner, layer: nn.Module, when: str) -> None:
    before = module_values(layer)

    def compare(module: nn.Module, *_: Any) -> None:
        for name, value in before.items():
            # Not get_parameter: a functional call may replace a parameter by a tensor that is no nn.Parameter.
            if not torch.equal(attrgetter(name)(module).detach(), value):
                raise CheckFailure(f"{when}, the inner loop changes its `{name}`")

    handle = layer.register_forward_pre_hook(compare)
    outer = torch.optim.Adam(learner.parameters(), lr=0.05)
    for number in range(2):
        learner.step(subject.batch(seed=number), outer)
    learner.evaluate(subject.batch())
    handle.remove()
    require_all_equal(module_values(layer), before, f"`{{}}` after two steps {when}")


@check("learners")
def batch_norm(subject: LearnerSubject) -> None:
    """With batch normalization, rows, steps and predictions are finite and running statistics do not change.

    Statistics must not leak from one task to another, so the network's running statistics are not written. A learner
    without support for batch normalization raises a `GradhomogError`. This network has more features than that of the
    other checks.
    """
    if not subject.accepts_batch_norm:
        raise NotApplicable("the learner rejects networks with batch normalization")
    learner = subject.learner(norm=True)
    before = copy.deepcopy(_buffers(learner))
    outer = torch.optim.Adam(learner.parameters(), lr=0.05)
    for number in range(3):
        batch = subject.batch(seed=number)
        learner.step(batch, outer)
        result = learner.evaluate(batch)
        values = {name: value.detach() for name, value in learner.named_parameters().items()}
        values["losses at meta-test"] = torch.tensor(result.losses)
        if nonfinite := [name for name, value in values.items() if not bool(torch.isfinite(value).all())]:
            raise CheckFailure(f"with batch normalization, not finite after {number + 1} steps: {', '.join(nonfinite)}")
    require_all_equal(_buffers(learner), before, "the buffer `{}` after three steps")


def _buffers(learner: Learner) -> dict[str, Tensor]:
    """Buffers of the network, without those of the learner's own modules."""
    parts = {"encoder": learner.encoder, "head": learner.head}
    return {f"{part}.{name}": value for part, module in parts.items() for name, value in module.named_buffers()}

"""Checks of homogenizers that act on the encoder or the features: rotations, hooks, removal at meta-test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import TaskKey
from gradhomog.testing import small_network
from gradhomog.testing.assertions import require_all_equal, require_equal, require_exact_rows
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check, full_or_fast
from gradhomog.testing.small_network import network, task
from gradhomog.testing.snapshots import module_structure, module_values
from gradhomog.testing.subjects import HomogenizerSubject

SIZE = 5  # an odd number of features: −1 is a rotation in even dimensions only


@check("homogenizers", claim="orthogonal")
def orthogonal(subject: HomogenizerSubject) -> None:
    """`transform` is linear, preserves inner products and has determinant 1, for every task, after 2000 updates."""
    if not subject.transforms:
        raise NotApplicable("it does not override `transform`")
    pipe, tasks, updates = subject.pipeline(), 3, full_or_fast(2000, 100)
    keys = [TaskKey(slot, f"domain {slot}") for slot in range(tasks)]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for number in range(updates):
        inputs = subject.step_inputs(torch.ones(tasks, 2, dtype=torch.float64))
        inputs["features"] = pipe.transform(normal(tasks, 4, SIZE), keys)
        inputs["feature_grads"] = [normal(tasks, 4, SIZE) for _ in inputs["features"]]
        inputs["targets"] = torch.arange(4).repeat(tasks, 1)
        pipe.combine(normal(tasks, 8), **inputs)
        if number in (0, 9, updates - 1):
            for dtype, rounding in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
                _require_rotation(pipe, keys, dtype, rounding, f"after {number + 1} updates, {dtype}")


def _require_rotation(pipe: Pipeline, keys: list[TaskKey], dtype: torch.dtype, rounding: float, when: str) -> None:
    basis = torch.eye(SIZE, dtype=dtype).repeat(len(keys), 1, 1)
    matrices = pipe.transform(basis, keys)[-1].detach()
    points = torch.linspace(-1, 2, basis.numel(), dtype=dtype).reshape(basis.shape)
    if not torch.allclose(pipe.transform(points, keys)[-1].detach(), points @ matrices, atol=20 * rounding):
        raise CheckFailure(f"{when}: `transform` is not linear in the features")
    for slot, matrix in enumerate(matrices.double()):
        off = float((matrix @ matrix.T - torch.eye(SIZE, dtype=torch.float64)).abs().max())
        if off > rounding:
            raise CheckFailure(f"{when}: RᵀR of task {slot} differs from the identity by {off:.2g}", matrix=matrix)
        if float(torch.linalg.det(matrix)) < 0:
            raise CheckFailure(f"{when}: the matrix of task {slot} has determinant −1: a reflection", matrix=matrix)


def _require_attach(subject: HomogenizerSubject) -> None:
    if not subject.attaches:
        raise NotApplicable("it does not override `attach`")


@check("homogenizers")
def constant_between_begins(subject: HomogenizerSubject) -> None:
    """Between two calls of `begin`, the attached encoder gives equal outputs for equal inputs: draws are kept.

    Checked after two steps, because learned state may determine how much is drawn.
    """
    _require_attach(subject)
    pipe = subject.pipeline()
    subject.outputs(pipe, steps=2)
    encoder, _ = network()
    inputs = task(0).support_x
    with pipe.attached(encoder):
        for part in ("support", "query"):
            pipe.begin(TaskKey(0, "domain 0"), part)
            first = encoder(inputs)
            for _ in range(4):
                require_equal(encoder(inputs), first, f"the encoder's output in a second run on {part} inputs")


@check("homogenizers")
def detached_completely(subject: HomogenizerSubject) -> None:
    """After training the encoder has its original hooks, parameters, buffers, `forward` and values.

    This must also hold if `attach` raises while it registers its first, second, … hook.
    """
    _require_attach(subject)
    encoder, _ = network()
    before, values = module_structure(encoder), module_values(encoder)
    with subject.pipeline().attached(encoder):
        pass
    _require_unchanged(encoder, before, values, "after the handles were removed")
    for failing in range(1, 9):
        encoder, _ = network()
        before, values, pipe = module_structure(encoder), module_values(encoder), subject.pipeline()
        with _registration_fails(failing) as calls, contextlib.suppress(Exception), pipe.attached(encoder):
            pass
        if calls[0] < failing:
            return
        _require_unchanged(encoder, before, values, f"after `attach` raised at hook {failing}")


@contextlib.contextmanager
def _registration_fails(at: int) -> Iterator[list[int]]:
    """Make the `at`-th registration of a hook raise, before the hook is stored."""
    calls, create = [0], RemovableHandle.__init__

    def fail(handle: RemovableHandle, *arguments: Any, **options: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise RuntimeError("deliberate error at the registration of a hook")
        create(handle, *arguments, **options)

    with mock.patch.object(RemovableHandle, "__init__", fail):
        yield calls


def _require_structure(encoder: nn.Module, before: list[object], when: str) -> None:
    if module_structure(encoder) != before:
        raise CheckFailure(f"{when}, the encoder has changed: hooks, parameters or `forward` are left")


def _require_unchanged(encoder: nn.Module, before: list[object], values: dict[str, Tensor], when: str) -> None:
    _require_structure(encoder, before, when)
    require_all_equal(module_values(encoder), values, f"the encoder's `{{}}` {when}")


@check("homogenizers")
def removed_at_meta_test(subject: HomogenizerSubject) -> None:
    """After training, predictions are those of a learner without homogenizers, and nothing is left on the encoder.

    Checked with the installed learners: hooks, parameters, buffers and modes must be the original ones, also after a
    task that fails. Values of parameters and buffers must not change without a step.
    """
    learners = subject.learners()
    for plugin in learners[: full_or_fast(len(learners), 2)]:
        name, learner = plugin.name, plugin.make_for(*network(), subject.pipeline())
        before, values = module_structure(learner.encoder), module_values(learner.encoder)
        learner.rows(small_network.batch(seed=2))
        what = f"the encoder's `{{}}` after rows of {name}, without a step"
        require_all_equal(module_values(learner.encoder), values, what)
        outer = torch.optim.SGD(learner.parameters(), lr=0.05)
        for step in range(2):
            learner.step(small_network.batch(seed=step), outer)
        _require_structure(learner.encoder, before, f"after a step of {name}")
        bare = plugin.make_for(*network())
        bare.load_state_dict({**learner.state_dict(), "homogenizers": bare.homogenizers.state_dict()})
        query = task(77)
        found, expected = (one.predict(query.support_x, query.support_y, query.query_x) for one in (learner, bare))
        require_equal(found, expected, f"predictions of {name} after meta-training")
        values = module_values(learner.encoder)
        handle = learner.head.register_forward_hook(mock.Mock(side_effect=RuntimeError("deliberate error in the head")))
        with contextlib.suppress(Exception):
            learner.rows(small_network.batch())
        handle.remove()
        _require_unchanged(learner.encoder, before, values, f"after a task of {name} failed")


@check("homogenizers")
def rows_are_derivatives(subject: HomogenizerSubject) -> None:
    """While `attach` and `transform` are active, rows are the derivatives of the losses.

    Rows of learners with the trait `exact_rows` are compared with finite differences of their losses. Random draws are
    constants in these derivatives. They must be the same in every run of a row: a function of seed and step.
    """
    if not subject.acts_before_rows:
        raise NotApplicable("it overrides neither `attach` nor `transform`")
    exact = [plugin for plugin in subject.installed_learners if "exact_rows" in plugin.claims]
    if not exact:
        raise NotApplicable("no installed learner claims the trait `exact_rows`")
    key, query = TaskKey(0, "domain 0"), small_network.batch(seed=5, tasks=1)[0]
    for plugin in exact[: full_or_fast(len(exact), 1)]:
        pipe = subject.pipeline()
        subject.outputs(pipe, 3)  # a rotation starts as the identity
        learner = plugin.make_for(*network(), pipe)
        with learner.mode(training=True), pipe.attached(learner.encoder):
            compute = partial(learner.task_row, query, key)
            rows = {name: None if row is None else row[None] for name, row in compute().gradients.items()}
            require_exact_rows(learner, rows, lambda: compute().loss[None], f" with {plugin.name}", "loss")  # noqa: B023

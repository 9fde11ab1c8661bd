"""What acts before rows exist: rotations stay rotations, what is drawn is held, and meta-test sees none of it."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from gradhomog.evidence import TaskKey
from gradhomog.pipelines import Pipeline
from gradhomog.testing.arena import network, task
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.comparing import same
from gradhomog.testing.homogenizers.subject import HomogenizerSubject

UPDATES, SIZE = 2000, 5  # an odd size: −1 is a rotation of four features and none of five


@check("homogenizers", claim="orthogonal")
def orthogonal(subject: HomogenizerSubject) -> None:
    """`transform` is linear, keeps inner products and has determinant one, for every task, after 2000 updates."""
    pipe = subject.pipeline()
    if not any(member.homogenizer.overrides("transform") for member in pipe.members):
        raise NotApplicable("it has no `transform`")
    tasks = 3
    keys = [TaskKey(slot, f"domain {slot}") for slot in range(tasks)]
    generator = torch.Generator().manual_seed(0)

    def normal() -> Tensor:
        return torch.randn(tasks, 4, SIZE, generator=generator, dtype=torch.float64)

    for step in range(UPDATES):
        shown = subject.shown(torch.ones(tasks, 2, dtype=torch.float64), pipe)
        shown["features"] = pipe.transform(normal(), keys)
        shown["feature_cotangents"] = [normal() for _ in shown["features"]]
        shown["targets"] = torch.arange(4).repeat(tasks, 1)
        pipe.combine(torch.randn(tasks, 8, generator=generator, dtype=torch.float64), **shown)
        if step in (0, 9, UPDATES - 1):
            for dtype, rounding in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
                _judge_rotation(pipe, keys, dtype, rounding, f"after {step + 1} updates, {dtype}")


def _judge_rotation(pipe: Pipeline, keys: list[TaskKey], dtype: torch.dtype, rounding: float, when: str) -> None:
    basis = torch.eye(SIZE, dtype=dtype).repeat(len(keys), 1, 1)
    matrices = pipe.transform(basis, keys)[-1].detach()
    points = torch.linspace(-1, 2, basis.numel(), dtype=dtype).reshape(basis.shape)
    if not torch.allclose(pipe.transform(points, keys)[-1].detach(), points @ matrices, atol=20 * rounding):
        raise CheckFailure(f"{when}: `transform` is not linear in the features")
    for slot, matrix in enumerate(matrices.double()):
        off = float((matrix @ matrix.T - torch.eye(SIZE, dtype=torch.float64)).abs().max())
        if off > rounding:
            raise CheckFailure(f"{when}: RᵀR of task {slot} is off the identity by {off:.2g}", matrix=matrix)
        if float(torch.linalg.det(matrix)) < 0:
            raise CheckFailure(f"{when}: the determinant of task {slot}'s matrix is −1: a reflection", matrix=matrix)


@check("homogenizers")
def held_between_begins(subject: HomogenizerSubject) -> None:
    """While attached, the encoder is one function of its input from one `begin` to the next: what is random is held.

    After two steps: what it has learnt may be how much to draw.
    """
    pipe = subject.pipeline()
    if not any(member.homogenizer.overrides("attach") for member in pipe.members):
        raise NotApplicable("it attaches nothing to the encoder")
    subject.exercise(pipe, steps=2)
    encoder, _ = network()
    inputs = task(0).support_x
    with pipe.attached(encoder):
        for part in ("support", "query"):
            pipe.begin(TaskKey(0, "domain 0"), part)
            first = encoder(inputs)
            for _ in range(4):
                same(encoder(inputs), first, f"the encoder's output, run again on {part} inputs")


@check("homogenizers")
def removed_at_meta_test(subject: HomogenizerSubject) -> None:
    """After training the adapted prediction is that of the bare network, and nothing is left on the encoder.

    For every installed learner: hooks, parameters, buffers and modes as before, also when a task fails in the middle;
    and the values of parameters and buffers as before, as long as nobody takes a step.
    """
    if not subject.arena.learners:
        raise NotApplicable("no learner here")
    for name in subject.arena.learners:
        made = subject.arena.learner(name, subject.pipeline())
        before, values = _anatomy(made.encoder), _values(made.encoder)
        made.rows(subject.arena.batch(seed=2))
        for path, value in _values(made.encoder).items():
            same(value, values[path], f"the encoder's `{path}` after rows of {name}, without a step")
        outer = torch.optim.SGD(made.parameters(), lr=0.05)
        for step in range(2):
            made.step(subject.arena.batch(seed=step), outer)
        if _anatomy(made.encoder) != before:
            raise CheckFailure(
                f"after a step of {name} the encoder is not as it was: hooks, parameters or forwards are left"
            )
        bare = subject.arena.learner(name, None)
        bare.load_state_dict({**made.state_dict(), "homogenizers": {}})
        given = task(77)
        arguments = given.support_x, given.support_y, given.query_x
        same(made.predict(*arguments), bare.predict(*arguments), f"predictions of {name} after meta-training")

        class Broken(Exception):
            pass

        def fail(*_: object) -> None:
            raise Broken

        handle, values = made.head.register_forward_hook(fail), _values(made.encoder)
        with contextlib.suppress(Exception):
            made.rows(subject.arena.batch())
        handle.remove()
        if _anatomy(made.encoder) != before or not _same_values(_values(made.encoder), values):
            raise CheckFailure(f"after a task of {name} failed, the encoder is not as it was")


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _anatomy(module: nn.Module) -> list[object]:
    """All that could make a module compute something else, but for values."""
    found: list[object] = [len(getattr(nn.modules.module, f"_global{hooks}")) for hooks in _HOOKS]
    for name, part in module.named_modules():
        hooks = [len(getattr(part, hooks)) for hooks in _HOOKS]
        found.append((name, type(part), type(part).forward, part.training, hooks, "forward" in vars(part)))
        found += [
            (key, tuple(value.shape), value.requires_grad, len(value._backward_hooks or ()))
            for key, value in (*part._parameters.items(), *part._buffers.items()) if value is not None
        ]  # fmt: skip
    return found


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in (*module.named_parameters(), *module.named_buffers())}


def _same_values(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)

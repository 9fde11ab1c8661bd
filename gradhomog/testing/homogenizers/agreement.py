"""Degeneration to the plain learner: tasks that agree are left alone."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.learners import Learner
from gradhomog.tasks import TaskBatch
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.comparing import agree
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.searching import for_all
from gradhomog.testing.strategies import jacobians


@check("homogenizers")
def identical_rows(subject: HomogenizerSubject) -> None:
    """N identical rows give that row, over two steps, for N from 1 to 6: one scale for all methods."""

    @for_all(jacobian=jacobians(tasks=1, params=(1, 9)), tasks=st.integers(1, 6))
    def _(jacobian: Tensor, tasks: int) -> None:
        direction = subject.combine(jacobian.repeat(tasks, 1), steps=2)
        agree(direction, jacobian[0], f"{tasks} identical rows", rtol=1e-9, atol=1e-12 * float(jacobian.abs().max()))


@check("homogenizers")
def no_gradient_no_direction(subject: HomogenizerSubject) -> None:
    """Rows that are all zero give the direction zero, exactly."""
    for tasks in (1, 3):
        direction = subject.combine(torch.zeros(tasks, 4), steps=2)
        if not isinstance(direction, Tensor) or bool((direction != 0).any()):
            raise CheckFailure("zero rows give a direction", jacobian=torch.zeros(tasks, 4), direction=direction)


@check("homogenizers")
def identical_tasks(subject: HomogenizerSubject) -> None:
    """N times the same task: three meta-steps of every installed learner are those of the plain learner.

    Where it attaches something to the encoder, only as long as rows of such tasks are those of the plain learner: what
    drops activations is not the identity for anybody. Features are to be transformed only where tasks differ. Of what
    claims `momentum`, the first step.
    """
    arena, compared = subject.arena, 0
    steps = 1 if "momentum" in subject.claims else 3
    attaching = any(member.homogenizer.overrides("attach") for member in subject.pipeline().members)
    for name in arena.learners:
        plain, other = arena.learner(name, None), arena.learner(name, subject.pipeline())
        optimizers = [torch.optim.SGD(made.parameters(), lr=0.1) for made in (plain, other)]
        for step in range(steps):
            batch = arena.same(seed=step)
            if attaching and not _rows_agree(plain, other, batch):
                break
            for made, optimizer in zip((plain, other), optimizers, strict=True):
                made.step(batch, optimizer)
            for parameter, value in plain.named_parameters().items():
                found = other.named_parameters()[parameter].detach()
                what = f"`{parameter}` of {name} after {step + 1} steps on identical tasks"
                agree(found, value.detach(), what, rtol=1e-7, atol=1e-10)
            compared += 1
    if not compared:
        reason = (
            "its rows of identical tasks are not those of the plain learner" if arena.learners else "no learner here"
        )
        raise NotApplicable(reason)


def _rows_agree(plain: Learner, other: Learner, batch: TaskBatch) -> bool:
    state = other.homogenizers.state_dict()
    expected, found = plain.rows(batch).jacobian, other.rows(batch).jacobian
    other.homogenizers.load_state_dict(state)
    return all(torch.allclose(found[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)

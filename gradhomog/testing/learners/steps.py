"""Checks of a training step: the outer optimizer steps along the mean of the rows, or the homogenized direction."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from gradhomog.errors import GradhomogError, NonfiniteError
from gradhomog.learners import Learner
from gradhomog.pipelines import Pipeline, pipeline
from gradhomog.tasks import TaskBatch
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import agree
from gradhomog.testing.learners.probes import InputDependentWeights
from gradhomog.testing.learners.side_effects import unchanged
from gradhomog.testing.learners.subject import LearnerSubject

RTOL, ATOL = 1e-9, 1e-12


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.05)


def _require_steps(subject: LearnerSubject, made: Learner, pipe: Pipeline) -> None:
    """Three steps, compared with three of copies of the parameters whose `.grad` a second pipeline computes."""
    copies = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in made.named_parameters().items()}
    outer, by_hand = _adam(made.parameters()), _adam(copies.values())
    for number in range(3):
        for parameter in made.parameters():
            parameter.grad = torch.full_like(parameter, 7.0)  # of an earlier step: to be ignored
        batch = subject.batch(seed=number)
        rows, report = made.rows(batch), made.step(batch, outer)
        agree(report.losses, rows.losses, "the losses in the step's report", rtol=RTOL, atol=ATOL)
        direction = pipe.homogenize(
            rows.jacobian, rows.losses, domains=batch.domains, features=rows.features,
            feature_grads=rows.feature_grads, targets=batch.query_y,
        ).direction  # fmt: skip
        assert isinstance(direction, dict)
        for name, parameter in copies.items():
            parameter.grad = direction[name].clone()
        by_hand.step()
        for name, parameter in made.named_parameters().items():
            what = f"`{name}` after {number + 1} steps of Adam"
            agree(parameter.detach(), copies[name].detach(), what, rtol=RTOL, atol=ATOL)


@check("learners")
def steps_on_mean(subject: LearnerSubject) -> None:
    """The plain step is the outer optimizer's step on the mean of the rows; older values of `.grad` are ignored."""
    _require_steps(subject, subject.learner(), Pipeline())


@check("learners")
def steps_homogenized(subject: LearnerSubject) -> None:
    """With a homogenizer, it is the step on `homogenize(rows, …)`, and its state is carried from step to step.

    Losses, domains, features, feature gradients and targets are passed on: the weights depend on all of them.
    """
    _require_steps(subject, subject.learner([InputDependentWeights()]), pipeline([InputDependentWeights()]))


@check("learners")
def nonfinite_reported(subject: LearnerSubject) -> None:
    """A task with NaN among its inputs raises a `NonfiniteError`, and nothing has changed.

    In its support set, unless the row does not depend on that, or in its query set. With `nonfinite="drop"` the step is
    that of the other tasks.
    """
    batch = subject.batch()
    for part in ("support_x", "query_x"):
        broken = TaskBatch(**{**vars(batch), part: getattr(batch, part).clone()})
        getattr(broken, part)[1, 0] = torch.nan
        if part == "support_x" and _ignored(subject, broken, batch):
            continue
        made = subject.learner()
        outer = _adam(made.parameters())
        made.step(batch, outer)
        with unchanged(made, f"after a task with NaN in `{part}`", outer):
            try:
                made.step(broken, outer)
            except NonfiniteError:
                pass
            except GradhomogError as error:
                raise CheckFailure(
                    f"NaN in `{part}` raises {type(error).__name__}, not NonfiniteError: {error}"
                ) from error
            else:
                raise CheckFailure(f"a step on a task with NaN in `{part}` is taken, without an error")
        _require_drop(subject, batch, broken, part)


def _ignored(subject: LearnerSubject, broken: TaskBatch, batch: TaskBatch) -> bool:
    """Whether the rows of both are the same, as of a learner that takes no inner step."""
    try:
        found = subject.learner().rows(broken).jacobian
    except NonfiniteError:
        return False
    return all(torch.equal(found[name], block) for name, block in subject.learner().rows(batch).jacobian.items())


def _require_drop(subject: LearnerSubject, batch: TaskBatch, broken: TaskBatch, part: str) -> None:
    made, others = subject.learner(nonfinite="drop"), subject.learner()
    made.step(broken, torch.optim.SGD(made.parameters(), lr=0.1))
    others.step([batch[0], batch[2]], torch.optim.SGD(others.parameters(), lr=0.1))
    for name, parameter in others.named_parameters().items():
        what = f"`{name}` after a step without the task with NaN in `{part}`"
        agree(made.named_parameters()[name].detach(), parameter.detach(), what, rtol=RTOL, atol=ATOL)

"""Checks of a training step: the outer optimizer uses the mean of the rows, or the homogenized direction."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from gradhomog.errors import GradhomogError, NonfiniteError
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import TaskBatch
from gradhomog.step.pipelines import Pipeline, pipeline
from gradhomog.testing.check import CheckFailure, check
from gradhomog.testing.comparisons import require_close
from gradhomog.testing.learners.auxiliary_homogenizers import InputDependentWeights
from gradhomog.testing.learners.side_effects import require_unchanged
from gradhomog.testing.learners.subject import LearnerSubject

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
        direction = pipe.homogenize(
            rows.jacobian, rows.losses, domains=batch.domains, features=rows.features,
            feature_grads=rows.feature_grads, targets=batch.query_y,
        ).direction  # fmt: skip
        assert isinstance(direction, dict)
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
        with require_unchanged(learner, f"after a task with NaN in `{part}`", outer):
            try:
                learner.step(broken, outer)
            except NonfiniteError:
                pass
            except GradhomogError as error:
                raise CheckFailure(
                    f"NaN in `{part}` raises {type(error).__name__}, not NonfiniteError: {error}"
                ) from error
            else:
                raise CheckFailure(f"a step with NaN in `{part}` does not raise")
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

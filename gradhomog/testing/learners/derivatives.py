"""Rows and cotangents against finite differences of the losses."""

from __future__ import annotations

import torch

from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.learners.spies import Shift
from gradhomog.testing.learners.subject import LearnerSubject

STEP, RTOL, ATOL = 1e-5, 1e-4, 1e-7  # of central differences in float64


@check("learners", claim="exact_rows")
def exact_rows(subject: LearnerSubject) -> None:
    """Rows equal central differences of the query losses in float64, along a random direction of every parameter."""
    made, batch = subject.learner(), subject.batch(seed=5, tasks=2)
    rows, generator = made.rows(batch).jacobian, torch.Generator().manual_seed(2)
    for name, parameter in made.named_parameters().items():
        along = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        start, ends = parameter.detach().clone(), []
        for sign in (1, -1):
            parameter.data.copy_(start + sign * STEP * along)
            ends.append(made.rows(batch).losses)
        parameter.data.copy_(start)
        for slot, expected in enumerate(((ends[0] - ends[1]) / (2 * STEP)).tolist()):
            found = float((rows[name][slot] * along).sum())
            if not abs(found - expected) <= RTOL * abs(expected) + ATOL:
                raise CheckFailure(
                    f"the row of `{name}` is not the derivative of the query loss: along a random direction it is "
                    f"{found:.8g}; finite differences say {expected:.8g}"
                )


@check("learners")
def feature_cotangents(subject: LearnerSubject) -> None:
    """`feature_cotangents` are the derivatives of the losses by the query features, before and after a `transform`.

    Against central differences: a homogenizer doubles the query features, and moves them along a random direction.
    """
    shift = Shift()
    made, batch = subject.learner([shift]), subject.batch(seed=6, tasks=2)
    rows, losses = made.rows(batch), []
    if not len(rows.features) == len(rows.feature_cotangents) == 2:
        raise CheckFailure(
            f"with a homogenizer that transforms there are {len(rows.features)} features and "
            f"{len(rows.feature_cotangents)} feature_cotangents; expected two of each: before and after it"
        )
    for sign in (1, -1):
        shift.size = sign * STEP
        losses.append(made.rows(batch).losses)
    for slot, expected in enumerate(((losses[0] - losses[1]) / (2 * STEP)).tolist()):
        for when, cotangents, factor in zip(
            ("before", "after"), rows.feature_cotangents, (shift.factor, 1), strict=True
        ):
            found = float((cotangents[slot] * shift.directions[slot]).sum()) / factor
            if not abs(found - expected) <= RTOL * abs(expected) + ATOL:
                raise CheckFailure(
                    f"the feature cotangents {when} the transform are not the loss's derivative: along a random "
                    f"direction of the features of task {slot} it would be {found:.8g}; finite differences say "
                    f"{expected:.8g}"
                )

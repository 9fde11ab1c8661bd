"""Which tasks it takes: it forms rows at all, and what it does not take it refuses in words."""

from __future__ import annotations

from typing import get_args

from gradhomog.errors import GradhomogError
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.learners.subject import LearnerSubject, Served

METRICS: dict[Served, str] = {"classification": "accuracy", "regression": "mse"}
STEMS: dict[Served, str] = {"classification": "classif", "regression": "regress"}


@check("learners")
def forms_rows(subject: LearnerSubject) -> None:
    """It can be made on a small float64 network and forms rows, of classification or of regression tasks.

    The network is an encoder of two convolutions and a linear head. The other checks need it: where this one fails,
    those that need rows do not apply.
    """
    if len(subject.refusals) == len(get_args(Served)):
        error = subject.refusals["classification"]
        raise CheckFailure(
            "on an encoder of two convolutions and a linear head, in float64, it forms no rows: "
            f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        )


@check("learners")
def serves_or_refuses(subject: LearnerSubject) -> None:
    """Classification and regression are both served, in rows and scores, or refused by an error that says which.

    The error is a `GradhomogError` with the word classification (or classifier), or regression.
    """
    _ = subject.served
    for served in get_args(Served):
        error = subject.refusals.get(served)
        if error is None:
            batch = subject.batch(tasks=2, served=served)
            result = subject.learner(served=served).evaluate(batch)
            if result.metric != METRICS[served] or len(result.scores) != len(batch):
                raise CheckFailure(
                    f"{served} is scored by {result.metric}, {len(result.scores)} scores of {len(batch)} tasks; "
                    f"expected {METRICS[served]}, one per task"
                )
        elif not isinstance(error, GradhomogError) or STEMS[served] not in str(error).lower():
            raise CheckFailure(
                f"{served} is refused by {type(error).__name__}, “{str(error).strip().partition(chr(10))[0]}”: raise a "
                f"GradhomogError that says that {served} is not served"
            )

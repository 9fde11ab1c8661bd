"""Normalized mean squared errors: errors divided by the variance of their domain's targets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gradhomog.errors import DataError
from gradhomog.learners.domains import Domain
from gradhomog.learners.results import Evaluation


def all_have_variance(domains: Sequence[Domain]) -> bool:
    """True if every domain has a `target_variance`, because all scores of a table must have the same metric.

    Raises:
        DataError: a target variance is not a positive number, or belongs to a classification domain.
    """
    for domain in domains:
        value = domain.target_variance
        if value is not None and (domain.outputs is None or not 0 < value < math.inf):
            raise DataError(
                f"domain {domain.name}: `target_variance` must be a positive number for regression, or None; "
                f"got {value!r}{' for classification' if domain.outputs is None else ''}."
            )
    return all(domain.target_variance is not None for domain in domains)


def normalize_scores(result: Evaluation, domains: Sequence[Domain]) -> Evaluation:
    """Divide each task's mean squared error by the target variance of its domain; losses are unchanged.

    nmse = mean (y − ŷ)² / σ², with the mean over the query points of a task. A prediction of the mean of the domain's
    targets for every point scores 1 on average over the domain's tasks.
    """
    variances = {domain.name: domain.target_variance or math.nan for domain in domains}
    scores = [score / variances[name] for score, name in zip(result.scores, result.domains, strict=True)]
    return dataclasses.replace(result, scores=scores, metric="nmse")

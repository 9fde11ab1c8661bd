"""Parts that the rules of the recommendation have in common."""

from __future__ import annotations

from collections.abc import Sequence

from gradhomog.diagnosis.estimates import interval, student_quantile
from gradhomog.diagnosis.result import DiagnosisResult
from gradhomog.table import LEVEL

NEGLIGIBLE = 0.1
"""Cosines and correlations within ± this number have no practical effect: two gradients of equal norm at cosine −0.1
lose 5 % of their length in the mean."""

MAX_NAMED = 3
"""Pairs that a sentence names."""

Pair = tuple[int, int]


def bonferroni(count: int, batches: int) -> float:
    """The factor of the half width of an interval after correction for the number of intervals."""
    tail = (1 - LEVEL) / 2
    return student_quantile(tail / count, batches - 1) / student_quantile(tail, batches - 1)


def zero_tasks(found: DiagnosisResult) -> list[int]:
    """The tasks all of whose rows are zero."""
    return [task for task, norm in enumerate(found.single.norms.value.tolist()) if norm == 0]


def nonzero_pairs(found: DiagnosisResult) -> list[Pair]:
    """All pairs of different tasks without zero tasks."""
    zero = zero_tasks(found)
    tasks = [task for task in range(len(found.tasks)) if task not in zero]
    return [(first, second) for first in tasks for second in tasks if first < second]


def pair_names(found: DiagnosisResult, pairs: Sequence[Pair]) -> list[str]:
    """The names of pairs, with the cosines of their expected gradients if these are resolved."""
    cosines = found.expected.cosines
    return [
        f"{found.tasks[i]} and {found.tasks[j]}"
        + ("" if bool(cosines.value[i, j].isnan()) else f" ({interval(cosines, i, j, digits=2)})")
        for i, j in pairs
    ]


def join(names: Sequence[str]) -> str:
    """The first names as one text, and the number of the others."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")

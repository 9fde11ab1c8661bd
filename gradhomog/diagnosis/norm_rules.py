"""Rules for the norms of expected gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from gradhomog.diagnosis.estimate_text import number, ratio_range
from gradhomog.diagnosis.recommendation import Recommendation
from gradhomog.diagnosis.result import DiagnosisResult
from gradhomog.diagnosis.rule_parts import bonferroni, nonzero_pairs

METHODS_FOR_NORMS = ("aligned_mtl", "imtl_g", "db_mtl", "reweight")
"""First choices and alternatives for different norms in docs/methods/index.md."""

DIFFERENT_NORMS = 2.0
"""Norm ratio from which static weights are worth tuning, as in docs/guide/do-i-need-this.md."""


def norms_differ(found: DiagnosisResult) -> Iterator[Recommendation]:
    """The pair whose norm ratio has the largest lower end, after Bonferroni's correction for the number of pairs."""
    pairs = nonzero_pairs(found)
    if not pairs:
        return
    factor = bonferroni(len(pairs), found.batches)
    lowest, larger, smaller = max(
        (_lowest_ratio(found, i, j, factor), i, j) for pair in pairs for i, j in (pair, pair[::-1])
    )
    if lowest >= DIFFERENT_NORMS:
        resolved = bool(found.norm_ratios.value[larger, smaller].isfinite())
        ratio = ratio_range(found.norm_ratios, larger, smaller, unit=" ×") if resolved else f"> {number(lowest)} ×"
        yield Recommendation(
            "norms_differ",
            f"norms of expected gradients differ {ratio} ({found.tasks[larger]} over {found.tasks[smaller]}): tune "
            f"static weights, or balance the norms: {', '.join(METHODS_FOR_NORMS)}.",
        )


def norms_are_similar(found: DiagnosisResult) -> bool:
    """True if the intervals of all norm ratios are within 1/2 and 2."""
    high = found.norm_ratios.high
    return all(float(torch.maximum(high[i, j], high[j, i])) < DIFFERENT_NORMS for i, j in nonzero_pairs(found))


def _lowest_ratio(found: DiagnosisResult, larger: int, smaller: int, factor: float) -> float:
    """The lower end of a norm ratio, with intervals multiplied by a factor; 0 if the larger norm is unresolved."""
    ratios, squares = found.norm_ratios, found.expected.inner_products.diagonal()
    value, low = float(ratios.value[larger, smaller]), float(ratios.low[larger, smaller])
    if not math.isnan(value):
        return value * math.pow(low / value, factor)  # the interval is that of the logarithm
    # The upper end of an unresolved norm is that of its square.
    numerator = float(squares.value[larger] - factor * squares.half_width[larger])
    denominator = float(squares.value[smaller] + factor * squares.half_width[smaller])
    return math.sqrt(numerator / denominator) if numerator > 0 and denominator > 0 else 0.0

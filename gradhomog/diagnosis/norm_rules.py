"""Rules for norms: of expected gradients, and of single rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import torch

from gradhomog.diagnosis.estimates import number, ratio_range
from gradhomog.diagnosis.result import DiagnosisResult, Recommendation
from gradhomog.diagnosis.rule_parts import Pair, bonferroni, join, nonzero_pairs

EQUAL_NORMS = 'reweight(beta=0, solver="fixed_point")'
"""The defaults of `reweight` make a task with a larger gradient larger."""

AUTO = "auto"
"""The method that is recommended first: it needs no tuning, and stays near tuned weights at every scale of a loss."""

METHODS_FOR_NORMS = (EQUAL_NORMS, "multiadam", "aligned_mtl")
"""Other methods that stay near tuned weights at every scale of a loss, in the suite (docs/results/suite.md)."""

METHODS_FOR_TAILS = (EQUAL_NORMS, "imtl_g", "trimmed_mean", "aligned_mtl")
"""Methods that bound the influence of a long row; on families of functions, whose rows have heavy tails, they are
better than tuned static weights (docs/results/where-surgery-helps.md)."""

HEAVY_TAIL = 0.2
"""Effective share of rows below which tails count as heavy: a normal distribution of log ‖g‖ has it at a standard
deviation of 0.63, which is a factor of 12 over the 95 % range of norms. For noise of many parameters it is near 1."""

DIFFERENT_NORMS = 2.0
"""Norm ratio from which static weights are worth tuning, as in docs/guide/do-i-need-this.md."""

ALIGNED = 0.9
"""Cosine from which expected gradients have one direction: weights then change the length of the step, not where it
goes."""

NOISY = 0.5
"""Signal fraction of rows below which weights matter although expected gradients are aligned: they weigh the noise."""

MIN_EFFECTIVE_ROWS = 3.0
"""With fewer batches, a share below `HEAVY_TAIL` would be that of one or two rows."""


def norms_differ(found: DiagnosisResult) -> Iterator[Recommendation]:
    """The norms of expected gradients if they differ; otherwise those of single rows if they differ."""
    if pairs := nonzero_pairs(found):
        factor = bonferroni(len(pairs), found.batches)
        noisy = (found.expected.signal_fractions.high < NOISY).tolist()
        apart = [pair for pair in pairs if not _aligned(found, pair)]
        uneven = [pair for pair in pairs if pair in apart or noisy[pair[0]] or noisy[pair[1]]]
        yield from _expected_norms(found, apart, factor) or _row_norms(found, uneven, factor)


def _expected_norms(found: DiagnosisResult, pairs: Sequence[Pair], factor: float) -> list[Recommendation]:
    """The pair whose norm ratio has the largest lower end, after Bonferroni's correction for the number of pairs."""
    ordered = [*pairs, *(pair[::-1] for pair in pairs)]
    lowest, larger, smaller = max(((_lowest_ratio(found, i, j, factor), i, j) for i, j in ordered), default=(0.0, 0, 0))
    if lowest < DIFFERENT_NORMS:
        return []
    resolved = bool(found.norm_ratios.value[larger, smaller].isfinite())
    ratio = ratio_range(found.norm_ratios, larger, smaller, unit=" ×") if resolved else f"> {number(lowest)} ×"
    return [
        Recommendation(
            "norms_differ",
            f"norms of expected gradients differ {ratio} ({found.tasks[larger]} over {found.tasks[smaller]}): tune "
            f"static weights, or balance the norms: {', '.join((AUTO, *METHODS_FOR_NORMS))}.",
            (AUTO, inverse_norms(found), *METHODS_FOR_NORMS),
        )
    ]


def _row_norms(found: DiagnosisResult, pairs: Sequence[Pair], factor: float) -> list[Recommendation]:
    """The pair whose typical norms of single rows differ most."""
    differences = found.row_norms.log_differences
    lowest = (differences.value - factor * differences.half_width).nan_to_num(nan=0.0)
    ordered = [pair for i, j in pairs for pair in ((i, j), (j, i)) if float(lowest[pair]) >= math.log(DIFFERENT_NORMS)]
    if not ordered:
        return []
    larger, smaller = max(ordered, key=lambda pair: float(lowest[pair]))
    value, low, high = (
        math.exp(float(part[larger, smaller])) for part in (differences.value, differences.low, differences.high)
    )
    return [
        Recommendation(
            "row_norms_differ",
            f"norms of single rows differ {number(value)} × ({number(low)} to {number(high)}) ({found.tasks[larger]} "
            f"over {found.tasks[smaller]}), by geometric means: the plain step follows the longer rows. Tune static "
            f"weights, or balance the norms: {', '.join((AUTO, *METHODS_FOR_NORMS))}.",
            (AUTO, inverse_norms(found), *METHODS_FOR_NORMS),
        )
    ]


def inverse_norms(found: DiagnosisResult) -> str:
    """The expression of static weights proportional to 1/‖E g‖ or, if a norm is unresolved, to 1/‖g‖; their mean is 1.

    A task without gradient has the weight 1.
    """
    expected, single = found.expected.norms.value, found.single.norms.value
    present = single > 0
    norms = (single if bool(expected[present].isnan().any()) else expected)[present]
    weights = torch.ones(len(found.tasks), dtype=torch.float64)
    weights[present] = (1 / norms) / (1 / norms).mean()
    numbers = [f"{weight:.2g}" for weight in weights.tolist()]
    if found.tasks == tuple(map(str, range(len(found.tasks)))):  # positions instead of names
        return f"static(weights=[{', '.join(numbers)}])"
    pairs = zip(found.tasks, numbers, strict=True)
    return f"static(weights={{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: {n}' for name, n in pairs)}}})"


def _aligned(found: DiagnosisResult, pair: Pair) -> bool:
    return float(found.expected.cosines.low[pair]) > ALIGNED  # False for NaN


def heavy_tails(found: DiagnosisResult) -> Iterator[Recommendation]:
    """Tasks whose mean squared norm comes from few rows, if there are enough batches for such a share."""
    if found.batches * HEAVY_TAIL < MIN_EFFECTIVE_ROWS:
        return
    shares = found.row_norms.effective_shares.value.tolist()
    heavy = sorted((share, name) for share, name in zip(shares, found.tasks, strict=True) if share < HEAVY_TAIL)
    if heavy:
        names = [f"{name} ({100 * share:.0f} %)" for share, name in heavy]
        yield Recommendation(
            "heavy_tails",
            f"norms of single rows have heavy tails: an effective share of {join(names)} of the rows makes up the mean "
            f"squared norm. Sums follow such rows: clip gradients, or bound each row: {', '.join(METHODS_FOR_TAILS)}. "
            "Intervals of signal fractions and noise scales are too narrow for such rows.",
            METHODS_FOR_TAILS,
        )


def norms_are_similar(found: DiagnosisResult) -> bool:
    """True if the intervals of the norm ratios of all pairs that are not aligned are within 1/2 and 2."""
    high = found.norm_ratios.high
    apart = [pair for pair in nonzero_pairs(found) if not _aligned(found, pair)]
    return all(float(torch.maximum(high[i, j], high[j, i])) < DIFFERENT_NORMS for i, j in apart)


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

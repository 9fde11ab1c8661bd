"""Recommendation of a diagnosis: rules on confidence intervals, each with a code and a plain sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gradhomog.confidence_level import LEVEL
from gradhomog.diagnosis.estimates import student_quantile
from gradhomog.diagnosis.measurement import Measurement
from gradhomog.diagnosis.numbers import interval, number, ratio_range

METHODS_FOR_CONFLICT = ("aligned_mtl", "cagrad", "mgda", "upgrad", "dcgd")
METHODS_FOR_NORMS = ("aligned_mtl", "imtl_g", "db_mtl", "reweight")
"""First choices and alternatives of the table in docs/methods/index.md."""

NEGLIGIBLE = 0.1
"""Cosines and correlations within ± this number have no practical effect: two gradients of equal norm at cosine −0.1
lose 5 % of their length in the mean."""

DIFFERENT_NORMS = 2.0
"""Norm ratio from which static weights are worth tuning, as in docs/guide/do-i-need-this.md."""

MAX_NAMED = 3
"""Pairs that a sentence names."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class Recommendation:
    """A sentence of the recommendation, with the code of its rule."""

    code: str
    text: str


def recommend(found: Measurement) -> tuple[Recommendation, ...]:
    """Apply all rules; the most important sentence is the first. The guide lists codes and conditions.

    Real conflict is claimed for a pair if the interval of its inner product is below zero after Bonferroni's correction
    for the number of pairs; that there is none, if the intervals of all pairs are above zero, or negligible.
    """
    if found.parallel:
        return (
            Recommendation(
                "summed_loss",
                "the rows of every batch are multiples of one gradient: probably the gradient of the summed loss was "
                "passed for each task. Differentiate the loss of each task separately.",
            ),
        )
    sentences = [
        *_mistakes(found),
        *_harm(found),
        *_conflict(found),
        *_magnitudes(found),
        *_noise(found),
        *_shared_noise(found),
    ]
    codes = {sentence.code for sentence in sentences}
    if "no_conflict" in codes and _norms_are_similar(found):
        sentences.append(
            Recommendation("plain_mean", "expected gradients agree in direction and norm: use the plain mean.")
        )
    return tuple(sentences)


def _mistakes(found: Measurement) -> Iterator[Recommendation]:
    for name in found.summed:
        yield Recommendation(
            "total_as_task",
            f"the row of {name} is a multiple of the sum of the other rows in every batch: probably it is the gradient "
            "of the total loss. Remove it from the tasks.",
        )
    zero = [name for name, norm in zip(found.tasks, found.single.norms.value.tolist(), strict=True) if norm == 0]
    if zero:
        yield Recommendation(
            "zero_gradient",
            f"all rows of {_join(zero)} are zero: the loss is at a minimum, or does not depend on the parameters.",
        )


def _harm(found: Measurement) -> Iterator[Recommendation]:
    products = found.step.products
    above = products.value + _bonferroni(len(found.tasks), found.batches) * products.half_width
    harmed = [task for task, high in enumerate(above.tolist()) if high < 0]
    if harmed:
        names = [f"{found.tasks[task]} ({interval(found.step.cosines, task, digits=2)})" for task in harmed]
        yield Recommendation(
            "harmed_task",
            f"the plain step increases the loss of {_join(names)}, by the cosine of expected gradient and step: "
            "reweight the losses, or use a method for conflict.",
        )


def _conflict(found: Measurement) -> Iterator[Recommendation]:
    products, cosines = found.expected.inner_products, found.expected.cosines
    tasks = len(found.tasks)
    pairs = [(first, second) for first in range(tasks) for second in range(first + 1, tasks)]
    if not pairs:
        return
    factor = _bonferroni(len(pairs), found.batches)
    negative = [pair for pair in pairs if float((products.value + factor * products.half_width)[pair]) < 0]
    negligible = [
        pair for pair in pairs if float(cosines.low[pair]) > -NEGLIGIBLE and float(cosines.high[pair]) < NEGLIGIBLE
    ]
    conflict = [pair for pair in negative if pair not in negligible]
    positive = [pair for pair in pairs if float(products.low[pair]) > 0 and pair not in negligible]
    unresolved = [pair for pair in pairs if pair not in (*conflict, *negligible, *positive)]
    if conflict:
        yield _real_conflict(found, sorted(conflict, key=lambda pair: float(cosines.value[pair].nan_to_num(nan=2.0))))
    elif not unresolved:
        yield _no_conflict(found, positive)
    if unresolved:
        yield _unresolved(found, unresolved, len(pairs))


def _real_conflict(found: Measurement, pairs: Sequence[Pair]) -> Recommendation:
    harmless = "; the plain step decreases all losses nevertheless" if bool((found.step.products.low > 0).all()) else ""
    return Recommendation(
        "conflict",
        f"real conflict between {_join(_named(found, pairs))}: the cosine of their expected gradients is "
        f"negative{harmless}. Methods for conflict can help: {', '.join(METHODS_FOR_CONFLICT)}; compare them with "
        "tuned static weights.",
    )


def _no_conflict(found: Measurement, positive: Sequence[Pair]) -> Recommendation:
    values = [value for pair in positive if not math.isnan(value := float(found.expected.cosines.value[pair]))]
    text = "no conflict: inner products of expected gradients are positive or negligible"
    if values:
        span = f"{min(values):.2f}" if len(values) == 1 else f"{min(values):.2f} to {max(values):.2f}"
        text = f"no conflict: cosines of expected gradients are positive or negligible ({span})"
    rate, independent = found.single.conflict_rate, found.single.independent_conflict_rate
    if float(rate.value) >= 0.1 and not bool(rate.value.isnan()):
        text += (
            f". The {interval(rate, percent=True, digits=0)} % of pairs of single rows that conflict do so by noise "
            f"(independent rows: {interval(independent, percent=True, digits=0)} %)"
        )
    return Recommendation("no_conflict", f"{text}.")


def _unresolved(found: Measurement, pairs: Sequence[Pair], total: int) -> Recommendation:
    needed = max((_batches_needed(found, pair) for pair in pairs), default=0)
    more = f"; at least {number(needed)} batches are needed" if math.isfinite(needed) else ""
    return Recommendation(
        "unresolved",
        f"conflict unresolved for {len(pairs)} of {total} pairs ({_join(_named(found, pairs))}): the intervals include "
        f"0 with {found.batches} batches{more}.",
    )


def _batches_needed(found: Measurement, pair: Pair) -> float:
    """A lower bound of the number of batches after which a pair is resolved: widths decrease as 1/B at most.

    The interval of an inner product must be narrower than its distance from 0, or than `NEGLIGIBLE` as a cosine.
    """
    products = found.expected.inner_products
    norms = [float(found.expected.norms.value[task]) for task in pair]
    if not any(map(math.isnan, norms)):
        target = max(abs(float(products.value[pair])), NEGLIGIBLE * math.prod(norms))
        return found.batches * float(products.half_width[pair]) / target
    squares = [(task, task) for task in pair if math.isnan(norms[pair.index(task)])]
    ratios = [
        float(products.half_width[place]) / value
        for place in squares
        if (value := float(products.value[place] if products.value[place] > 0 else products.high[place])) > 0
    ]
    return found.batches * max(ratios) if ratios else math.inf


def _magnitudes(found: Measurement) -> Iterator[Recommendation]:
    lows = found.norm_ratios.low.nan_to_num(nan=0.0, posinf=0.0)
    larger, smaller = divmod(int(lows.argmax()), len(found.tasks))
    if float(lows[larger, smaller]) >= DIFFERENT_NORMS:
        yield Recommendation(
            "norms_differ",
            f"norms of expected gradients differ {ratio_range(found.norm_ratios, larger, smaller, unit=' ×')} "
            f"({found.tasks[larger]} over {found.tasks[smaller]}): tune static weights, or balance the norms: "
            f"{', '.join(METHODS_FOR_NORMS)}.",
        )


def _norms_are_similar(found: Measurement) -> bool:
    return bool((found.norm_ratios.high < DIFFERENT_NORMS).all())


def _noise(found: Measurement) -> Iterator[Recommendation]:
    step, rows = found.noise.step_noise_scale, found.noise.noise_scales
    if bool(step.value.isnan()):
        return
    if float(step.high) == 0 and float(rows.high.nan_to_num(nan=0.0).max()) == 0:
        yield Recommendation("no_noise", "no noise: the rows of all batches are equal.")
    elif float(step.low) > 1:
        finite = rows.value[rows.value.isfinite()]
        single = f" and {number(float(finite.min()))} × or more in single rows" if finite.numel() else ""
        yield Recommendation(
            "average_more",
            f"noise exceeds signal {ratio_range(step, unit=' ×')} in the plain step{single}: methods that compare "
            "single rows act on noise. Average more examples, tasks or batches in a step.",
        )
    elif float(step.high) < 1:
        yield Recommendation(
            "little_noise", f"signal exceeds noise in the plain step (noise scale {ratio_range(step)})."
        )
    elif math.isinf(float(step.high)):
        yield Recommendation(
            "noise_unresolved",
            f"noise of the plain step unresolved: with {found.batches} batches its noise scale is "
            f"{ratio_range(step)}. Measure more batches.",
        )
    else:
        yield Recommendation(
            "noise_like_signal",
            f"noise and signal of the plain step are of similar size (noise scale {ratio_range(step)}).",
        )


def _shared_noise(found: Measurement) -> Iterator[Recommendation]:
    correlations = found.noise.correlations
    certain = (correlations.low > NEGLIGIBLE) | (correlations.high < -NEGLIGIBLE)
    rows, columns = torch.nonzero(torch.triu(certain, 1), as_tuple=True)
    pairs = sorted(
        zip(rows.tolist(), columns.tolist(), strict=True), key=lambda pair: -abs(float(correlations.value[pair]))
    )
    if pairs:
        named = [f"{found.tasks[i]} and {found.tasks[j]} ({interval(correlations, i, j, digits=2)})" for i, j in pairs]
        yield Recommendation(
            "shared_noise",
            f"the noise of tasks is correlated within a batch, as by shared inputs: {_join(named)}. Cosines of single "
            "batches differ from those of expected gradients.",
        )


def _bonferroni(pairs: int, batches: int) -> float:
    """The factor of a half width after correction for the number of pairs."""
    tail = (1 - LEVEL) / 2
    return student_quantile(tail / pairs, batches - 1) / student_quantile(tail, batches - 1)


def _named(found: Measurement, pairs: Sequence[Pair]) -> list[str]:
    cosines = found.expected.cosines
    return [
        f"{found.tasks[i]} and {found.tasks[j]}"
        + ("" if bool(cosines.value[i, j].isnan()) else f" ({interval(cosines, i, j, digits=2)})")
        for i, j in pairs
    ]


def _join(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")

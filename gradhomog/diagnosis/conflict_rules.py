"""Rules for harmed tasks, and for conflict of pairs of tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from gradhomog.diagnosis.estimates import interval
from gradhomog.diagnosis.result import DiagnosisResult, Recommendation
from gradhomog.diagnosis.rule_parts import NEGLIGIBLE, Pair, bonferroni, join, nonzero_pairs, pair_names, zero_tasks

METHODS_FOR_CONFLICT = ("aligned_mtl", "cagrad", "mgda", "upgrad", "dcgd")
"""First choices and alternatives for conflict in docs/methods/index.md."""

RARE = 0.1
"""Conflict rate of single rows below which `no_conflict` does not mention it."""


def harm(found: DiagnosisResult) -> Iterator[Recommendation]:
    """Tasks whose loss the plain step increases."""
    if harmed := _harmed(found):
        names = [f"{found.tasks[task]} ({interval(found.step.cosines, task, digits=2)})" for task in harmed]
        yield Recommendation(
            "harmed_task",
            f"the plain step increases the loss of {join(names)}, by the cosine of expected gradient and step: "
            "reweight the losses, or use a method for conflict.",
            METHODS_FOR_CONFLICT,
        )


def conflict(found: DiagnosisResult) -> Iterator[Recommendation]:
    """Real conflict, its absence, and unresolved pairs."""
    pairs = nonzero_pairs(found)
    if not pairs:
        return
    products, cosines = found.expected.inner_products, found.expected.cosines
    factor, harmed = bonferroni(len(pairs), found.batches), _harmed(found)
    negative = [pair for pair in pairs if float((products.value + factor * products.half_width)[pair]) < 0]
    # A small cosine with a much longer gradient can harm a task.
    negligible = [
        pair
        for pair in pairs
        if float(cosines.low[pair]) > -NEGLIGIBLE
        and float(cosines.high[pair]) < NEGLIGIBLE
        and not set(pair) & set(harmed)
    ]
    real = [pair for pair in negative if pair not in negligible]
    positive = [pair for pair in pairs if float(products.low[pair]) > 0 and pair not in negligible]
    others = [pair for pair in pairs if pair not in (*real, *negligible, *positive)]
    hidden = [pair for pair in others if _largest_effect(found, pair) < NEGLIGIBLE]
    unresolved = [pair for pair in others if pair not in hidden]
    if real:
        yield _real_conflict(found, sorted(real, key=lambda pair: float(cosines.value[pair].nan_to_num(nan=2.0))))
    elif not others:
        yield _no_conflict(found, positive, negligible)
    if unresolved:
        yield _unresolved(found, unresolved, len(pairs))
    if hidden:
        effect = max(_largest_effect(found, pair) for pair in hidden)
        yield Recommendation(
            "hidden_by_noise",
            f"conflict of {len(hidden)} of {len(pairs)} pairs ({join(pair_names(found, hidden))}) cannot matter, and "
            "more batches are not needed: the signal is so small that the angle of the expected gradients changes "
            f"cosines of single rows, which methods compare, by at most {effect:.2g}.",
        )


def _largest_effect(found: DiagnosisResult, pair: Pair) -> float:
    """√(s_i s_j) of the upper ends of the signal fractions: the cosine of two rows whose expectations are aligned."""
    first, second = (max(0.0, float(found.expected.signal_fractions.high[task])) for task in pair)
    return math.sqrt(first * second)


def _harmed(found: DiagnosisResult) -> list[int]:
    products = found.step.products
    above = products.value + bonferroni(len(found.tasks), found.batches) * products.half_width
    return [task for task, high in enumerate(above.tolist()) if high < 0]


def _real_conflict(found: DiagnosisResult, pairs: Sequence[Pair]) -> Recommendation:
    zero = zero_tasks(found)
    all_decrease = all(low > 0 for task, low in enumerate(found.step.products.low.tolist()) if task not in zero)
    methods = ", ".join(METHODS_FOR_CONFLICT)
    # Measured on pairs of glyphs and on ten regressions: docs/results/where-surgery-helps.md.
    advice = (
        f"the plain step decreases all losses nevertheless. Expect little from methods for conflict ({methods})"
        if all_decrease
        else f"methods for conflict can help: {methods}"
    )
    return Recommendation(
        "conflict",
        f"real conflict between {join(pair_names(found, pairs))}: the cosine of their expected gradients is negative; "
        f"{advice}. Compare them with tuned static weights.",
        () if all_decrease else METHODS_FOR_CONFLICT,
    )


def _no_conflict(found: DiagnosisResult, positive: Sequence[Pair], negligible: Sequence[Pair]) -> Recommendation:
    values = [value for pair in positive if not math.isnan(value := float(found.expected.cosines.value[pair]))]
    text = "no conflict: inner products of expected gradients are positive or negligible"
    if values:
        span = f"{min(values):.2f}" if len(values) == 1 else f"{min(values):.2f} to {max(values):.2f}"
        text = f"no conflict: cosines of expected gradients are positive or negligible ({span})"
    rate, independent = _mean_conflict_rates(found, positive)
    if rate >= RARE:
        which = "pairs of single rows" if not negligible else "pairs of single rows with a positive expectation"
        text += (
            f". The {100 * rate:.0f} % of {which} that conflict do so by noise (independent rows: "
            f"{100 * independent:.0f} %)"
        )
    if _mean_conflict_rates(found, negligible)[0] >= RARE:
        text += f". Cosines within ±{NEGLIGIBLE} are negligible: the sign of their single inner products has no effect"
    return Recommendation("no_conflict", f"{text}.")


def _mean_conflict_rates(found: DiagnosisResult, pairs: Sequence[Pair]) -> tuple[float, float]:
    """Mean conflict rates of rows of one batch and of two batches; NaN if no batch has such a pair."""
    rates = found.single.conflict_rates.value, found.single.independent_conflict_rates.value
    same, independent = (float(torch.stack([rate[pair] for pair in pairs] or [rate.new_tensor(torch.nan)]).nanmean())
                         for rate in rates)  # fmt: skip
    return same, independent


def _unresolved(found: DiagnosisResult, pairs: Sequence[Pair], total: int) -> Recommendation:
    factor = bonferroni(total, found.batches)
    needed = [value for pair in pairs if math.isfinite(value := _batches_needed(found, pair, factor))]
    more = f"; at least {_round_up(max(found.batches + 1, *needed)):,} batches are needed" if needed else ""
    return Recommendation(
        "unresolved",
        f"conflict unresolved for {len(pairs)} of {total} pairs ({join(pair_names(found, pairs))}): the corrected "
        f"intervals include 0 with {found.batches} batches{more}.",
    )


def _batches_needed(found: DiagnosisResult, pair: Pair, factor: float) -> float:
    """A lower bound of the number of batches after which a pair is resolved: widths decrease as 1/B at most.

    The interval of an inner product must be narrower than its distance from 0, or than `NEGLIGIBLE` as a cosine; that
    of a negative one after multiplication by the factor of Bonferroni's correction.
    """
    products = found.expected.inner_products
    norms = [float(found.expected.norms.value[task]) for task in pair]
    if not any(map(math.isnan, norms)):
        value, half_width = float(products.value[pair]), float(products.half_width[pair])
        ratios = [half_width / (NEGLIGIBLE * math.prod(norms))]
        if value:
            ratios.append((factor if value < 0 else 1.0) * half_width / abs(value))
        return found.batches * min(ratios)
    squares = [(task, task) for task in pair if math.isnan(norms[pair.index(task)])]
    ratios = [
        float(products.half_width[place]) / value
        for place in squares
        if (value := float(products.value[place] if products.value[place] > 0 else products.high[place])) > 0
    ]
    return found.batches * max(ratios) if ratios else math.inf


def _round_up(value: float) -> int:
    """The next integer with two significant digits."""
    whole = math.ceil(value)
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit

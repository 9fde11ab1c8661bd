"""Recommendation of a diagnosis: rules on confidence intervals, each with a code and a plain sentence."""

import json
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import (
    MIN_BATCHES,
    TransformedEstimate,
    interval,
    number,
    ratio_range,
    student_quantile,
)
from gradhomog.diagnosis.result import DiagnosisResult, Recommendation
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
    pairs = nonzero_pairs(found)
    if not pairs:
        return
    factor = bonferroni(len(pairs), found.batches)
    noisy = (found.expected.signal_fractions.high < NOISY).tolist()
    apart = [pair for pair in pairs if not _aligned(found, pair)]
    uneven = [pair for pair in pairs if pair in apart or noisy[pair[0]] or noisy[pair[1]]]
    advice = f"tune static weights, or balance the norms: {', '.join((AUTO, *METHODS_FOR_NORMS))}."
    methods = (AUTO, inverse_norms(found), *METHODS_FOR_NORMS)
    if ratio := _expected_ratio(found, apart, factor):
        yield Recommendation("norms_differ", f"norms of expected gradients differ {ratio}: {advice}", methods)
    elif ratio := _row_ratio(found, uneven, factor):
        yield Recommendation(
            "row_norms_differ",
            f"norms of single rows differ {ratio}, by geometric means, and the plain step follows the longer rows: "
            f"{advice}",
            methods,
        )


def _expected_ratio(found: DiagnosisResult, pairs: Sequence[Pair], factor: float) -> str:
    """The norm ratio with the largest lower end, after Bonferroni's correction; empty if norms do not differ."""
    ordered = [*pairs, *(pair[::-1] for pair in pairs)]
    lowest, larger, smaller = max(((_lowest_ratio(found, i, j, factor), i, j) for i, j in ordered), default=(0.0, 0, 0))
    if lowest < DIFFERENT_NORMS:
        return ""
    resolved = bool(found.norm_ratios.value[larger, smaller].isfinite())
    ratio = ratio_range(found.norm_ratios, larger, smaller, unit=" ×") if resolved else f"> {number(lowest)} ×"
    return f"{ratio} ({found.tasks[larger]} over {found.tasks[smaller]})"


def _row_ratio(found: DiagnosisResult, pairs: Sequence[Pair], factor: float) -> str:
    """The ratio of the typical norms of single rows that differ most; empty if norms do not differ."""
    differences = found.row_norms.log_differences
    lowest = (differences.value - factor * differences.half_width).nan_to_num(nan=0.0)
    ordered = [pair for i, j in pairs for pair in ((i, j), (j, i)) if float(lowest[pair]) >= math.log(DIFFERENT_NORMS)]
    if not ordered:
        return ""
    larger, smaller = max(ordered, key=lambda pair: float(lowest[pair]))
    ratio = ratio_range(TransformedEstimate.of(differences, torch.exp), larger, smaller, unit=" ×")
    return f"{ratio} ({found.tasks[larger]} over {found.tasks[smaller]})"


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
    ratios, squares = found.norm_ratios, found.expected.inner_products
    value, low = float(ratios.value[larger, smaller]), float(ratios.low[larger, smaller])
    if not math.isnan(value):
        return value * math.pow(low / value, factor)  # the interval is that of the logarithm
    # The upper end of an unresolved norm is that of its square.
    numerator = float((squares.value - factor * squares.half_width)[larger, larger])
    denominator = float((squares.value + factor * squares.half_width)[smaller, smaller])
    return math.sqrt(numerator / denominator) if numerator > 0 and denominator > 0 else 0.0


def noise(found: DiagnosisResult) -> Iterator[Recommendation]:
    """Noise relative to signal: in single rows, which methods compare, and in the plain step."""
    step, rows = found.noise.step_noise_scale, found.noise.noise_scales
    if bool(step.value.isnan()):
        return
    if float(step.high) == 0 and _largest(rows.high) == 0:
        yield Recommendation("no_noise", "no noise: the rows of all batches are equal.")
        return
    noisy_rows, step_is_noisy = _noisy_rows(found), float(step.low) > 1
    if noisy_rows or (step_is_noisy and not _cancels(found)):
        yield _average_more(found, noisy_rows, step_is_noisy)
    if not step_is_noisy:
        yield _plain_step(found)
    elif not noisy_rows and _cancels(found):
        scale = f"noise scale {ratio_range(step)}" if math.isfinite(float(step.low)) else "no measurable signal"
        yield Recommendation(
            "plain_step_cancels",
            f"the expected gradients almost cancel in the plain step ({scale}), not in single rows (noise scale at "
            f"most {number(_largest(rows.high))}): the direction of the plain step is mostly noise. Reweight the "
            "losses, or use a method for conflict.",
        )


def shared_noise(found: DiagnosisResult) -> Iterator[Recommendation]:
    """Pairs with correlated noise, unless noise is negligible in both of their rows."""
    correlations = found.noise.correlations
    noisy = found.noise.noise_scales.value > NEGLIGIBLE
    certain = (correlations.low > NEGLIGIBLE) | (correlations.high < -NEGLIGIBLE)
    rows, columns = torch.nonzero(torch.triu(certain & (noisy[:, None] | noisy), 1), as_tuple=True)
    pairs = sorted(
        zip(rows.tolist(), columns.tolist(), strict=True), key=lambda pair: -abs(float(correlations.value[pair]))
    )
    if pairs:
        named = [f"{found.tasks[i]} and {found.tasks[j]} ({interval(correlations, i, j, digits=2)})" for i, j in pairs]
        yield Recommendation(
            "shared_noise",
            f"the noise of tasks is correlated within a batch, as by shared inputs: {join(named)}. Cosines of single "
            "batches differ from those of expected gradients.",
        )


def _average_more(found: DiagnosisResult, noisy_rows: str, step_is_noisy: bool) -> Recommendation:
    """The sentence for noise in rows, in the plain step, or in both."""
    step, places = found.noise.step_noise_scale, [noisy_rows] if noisy_rows else []
    measurable = math.isfinite(float(step.low))
    if step_is_noisy:
        places.insert(0, f"{ratio_range(step, unit=' ×')} in the plain step" if measurable else "in the plain step")
    act = ": methods that compare single rows act on noise" if noisy_rows else ""
    more = "examples, tasks or batches in a step" if step_is_noisy else "examples or batches in each row"
    signal = "" if measurable else f" No signal is measurable in the plain step with {found.batches} batches."
    return Recommendation(
        "average_more", f"noise exceeds signal {' and '.join(places)}{act}. Average more {more}.{signal}"
    )


def _cancels(found: DiagnosisResult) -> bool:
    """True if the noise scale of the plain step is above those of all rows."""
    return float(found.noise.step_noise_scale.low) > _largest(found.noise.noise_scales.high)


def _largest(values: Tensor) -> float:
    return float(values.nan_to_num(nan=0.0, posinf=torch.inf).max())


def _noisy_rows(found: DiagnosisResult) -> str:
    """The noise scale and the place of rows whose noise exceeds their signal, as text; empty if there are none."""
    scales = found.noise.noise_scales
    measured = ~scales.value.isnan()
    noisy = (scales.low > 1) & measured
    if not bool(noisy.any()):
        return ""
    names = [name for name, is_noisy in zip(found.tasks, noisy.tolist(), strict=True) if is_noisy]
    where = "in single rows" if bool((noisy | ~measured).all()) else f"in single rows of {join(names)}"
    finite = scales.value[noisy & scales.value.isfinite()]
    return f"{number(float(finite.min()))} × or more {where}" if finite.numel() else where


def _plain_step(found: DiagnosisResult) -> Recommendation:
    """The sentence for a plain step whose noise may be smaller than its signal."""
    step = found.noise.step_noise_scale
    if math.isinf(float(step.high)):
        return Recommendation(
            "noise_unresolved",
            f"noise of the plain step unresolved: with {found.batches} batches its noise scale is "
            f"{ratio_range(step)}. Measure more batches.",
        )
    if float(step.high) < 1:
        return Recommendation(
            "little_noise", f"signal exceeds noise in the plain step (noise scale {ratio_range(step)})."
        )
    return Recommendation(
        "noise_like_signal",
        f"noise and signal of the plain step are of similar size (noise scale {ratio_range(step)}).",
    )


SUMMED_LOSS = Recommendation(
    "summed_loss",
    "the rows of every batch are multiples of one gradient: probably the gradient of the summed loss was passed for "
    "each task. Differentiate the loss of each task separately.",
)

ACCUMULATED_ROWS = Recommendation(
    "accumulated_rows",
    "each row contains the earlier ones, g₁, g₁ + g₂, …: probably gradients were read from `.grad` without "
    "`zero_grad()` before each `backward()`. Use `Diagnosis.add_losses`, or `torch.autograd.grad`. Rows that grow from "
    "batch to batch because the parameters change are not valid either: measure at fixed parameters.",
)


def mistakes(found: DiagnosisResult) -> Iterator[Recommendation]:
    """The total loss among the tasks, dependent rows, zero rows, and rare tasks."""
    for name in found.summed:
        yield Recommendation(
            "total_as_task",
            f"the row of {name} is a multiple of the sum of the other rows in every batch: probably it is the gradient "
            "of the total loss. Remove it from the tasks.",
        )
    if found.dependent and not found.summed:
        yield Recommendation(
            "dependent_rows",
            "the rows of every batch are linearly dependent: probably a task is a weighted sum of others, such as the "
            "total loss. Remove it, unless the shared parameters have fewer outputs than there are tasks.",
        )
    if zero := [found.tasks[task] for task in zero_tasks(found)]:
        yield Recommendation(
            "zero_gradient",
            f"all rows of {join(zero)} are zero: the loss is at a minimum, or does not depend on the parameters.",
        )
    if found.left_out:
        names = [f"{name} ({count} batch{'' if count == 1 else 'es'})" for name, count in found.left_out.items()]
        yield Recommendation(
            "rare_task",
            f"left out, as estimates require rows of a task in {MIN_BATCHES} batches: {join(names)}. Measure more "
            "batches.",
        )


def recommend(found: DiagnosisResult) -> tuple[Recommendation, ...]:
    """Apply all rules; the most important sentence is the first. The guide lists codes and conditions.

    Real conflict is claimed for a pair if the interval of its inner product is below zero after Bonferroni's correction
    for the number of pairs; that there is none, if the intervals of all pairs are above zero, or negligible.
    """
    if found.accumulated:
        return (ACCUMULATED_ROWS,)
    if found.parallel:
        return (SUMMED_LOSS,)
    rules = (mistakes, harm, conflict, norms_differ, heavy_tails, noise, shared_noise)
    sentences = [sentence for rule in rules for sentence in rule(found)]
    codes = {sentence.code for sentence in sentences}
    if "no_conflict" in codes and not codes & {"row_norms_differ", "heavy_tails"} and norms_are_similar(found):
        sentences.append(
            Recommendation(
                "plain_mean",
                "expected gradients do not conflict, and those of different direction have similar norms: use the "
                "plain mean.",
            )
        )
    return tuple(sentences)

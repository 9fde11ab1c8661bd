"""Recommendation of a diagnosis: a table of rules on confidence intervals, each with a code and a plain sentence."""

import functools
import json
import math
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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

METHODS_FOR_CONFLICT = ("aligned_mtl", "cagrad", "mgda", "upgrad", "dcgd")
"""First choices and alternatives for conflict in docs/methods/index.md."""

RARE = 0.1
"""Conflict rate of single rows below which `no_conflict` does not mention it."""

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

Pair = tuple[int, int]

Values = dict[str, Any]
"""The values in the sentence of a rule by name, and the `methods` that it recommends."""


class _Facts:
    """The facts about a result that several rules read; masks of pairs `[tasks, tasks]` are above the diagonal.

    Attributes:
        pairs: pairs of tasks whose rows are not all zero.
        factor: of half widths, after Bonferroni's correction for the number of pairs.
        harmed: tasks whose loss the plain step increases.
        negligible: pairs whose cosine is negligible; not if one of them is harmed, as by a much longer gradient.
        real, positive: other pairs whose inner product is negative, or positive.
        hidden: the rest, if conflict cannot matter; `effects` are the largest cosines of rows whose expectations are
            aligned, √(s_i s_j) of the upper ends of the signal fractions.
        unresolved: all others.
        step_noise: the noise scale of the plain step.
        noisy_step: True if noise exceeds signal in the plain step.
        aligned: pairs whose cosine is certainly close to one.
        has_noise: True if the plain step has measured noise, or rows have noise.
        cancels: True if the noise scale of the plain step is above those of all rows.
    """

    def __init__(self, found: DiagnosisResult) -> None:
        expected, step, batches = found.expected, found.step.products, found.batches
        products, cosines = expected.inner_products, expected.cosines
        self.found, self.present = found, found.single.norms.value != 0
        self.pairs = (self.present[:, None] & self.present).triu(1)
        self.factor = _bonferroni(max(int(self.pairs.sum()), 1), batches)
        self.harmed = step.value + _bonferroni(len(found.tasks), batches) * step.half_width < 0
        small = (cosines.low > -NEGLIGIBLE) & (cosines.high < NEGLIGIBLE)
        self.negligible = self.pairs & small & ~self.harmed[:, None] & ~self.harmed
        negative = products.value + self.factor * products.half_width < 0
        self.real = self.pairs & negative & ~self.negligible
        self.positive = self.pairs & (products.low > 0) & ~self.negligible
        others = self.pairs & ~(self.real | self.negligible | self.positive)
        fractions = expected.signal_fractions.high.nan_to_num(nan=0.0, posinf=torch.inf).clamp_min(0)
        self.effects = (fractions[:, None] * fractions).sqrt()
        self.hidden = others & (self.effects < NEGLIGIBLE)
        self.unresolved = others & ~self.hidden
        self.step_noise = found.noise.step_noise_scale
        self.noisy_step = float(self.step_noise.low) > 1
        self.aligned = cosines.low > ALIGNED  # False for NaN
        self.no_conflict = bool(self.pairs.any()) and not bool((self.real | self.hidden | self.unresolved).any())
        self.largest_row_noise = float(found.noise.noise_scales.high.nan_to_num(nan=0.0, posinf=torch.inf).max())
        quiet = float(self.step_noise.high) == 0 and self.largest_row_noise == 0
        self.has_noise = not bool(self.step_noise.value.isnan()) and not quiet
        self.cancels = float(self.step_noise.low) > self.largest_row_noise

    @functools.cached_property
    def expected_ratio(self) -> str:
        """The norm ratio of expected gradients with the largest lower end; empty if their norms do not differ."""
        found, some = self.found, self.pairs & ~self.aligned
        lowest_ratios = self.lowest_ratios()
        ordered = [(float(lowest_ratios[i, j]), i, j) for i, j in _listed(some | some.mT)]
        lowest, larger, smaller = max(ordered, default=(0.0, 0, 0))
        if lowest < DIFFERENT_NORMS:
            return ""
        resolved = bool(found.norm_ratios.value[larger, smaller].isfinite())
        ratio = ratio_range(found.norm_ratios, larger, smaller, unit=" ×") if resolved else f"> {number(lowest)} ×"
        return f"{ratio} ({found.tasks[larger]} over {found.tasks[smaller]})"

    @functools.cached_property
    def row_ratio(self) -> str:
        """The ratio of typical norms of single rows that differ most; empty if norms of rows, or others, do not."""
        found, differences = self.found, self.found.row_norms.log_differences
        noisy = found.expected.signal_fractions.high < NOISY
        some = self.pairs & (~self.aligned | noisy[:, None] | noisy)
        lowest = (differences.value - self.factor * differences.half_width).nan_to_num(nan=0.0)
        pairs = [pair for i, j in _listed(some) for pair in ((i, j), (j, i))]
        larger, smaller = max(pairs, key=lambda pair: float(lowest[pair]), default=(0, 0))
        if float(lowest[larger, smaller]) < math.log(DIFFERENT_NORMS) or self.expected_ratio:
            return ""
        ratio = ratio_range(TransformedEstimate.of(differences, torch.exp), larger, smaller, unit=" ×")
        return f"{ratio} ({found.tasks[larger]} over {found.tasks[smaller]})"

    @functools.cached_property
    def heavy(self) -> list[tuple[float, str]]:
        """Tasks whose mean squared norm comes from few rows, if there are enough batches for such a share."""
        if self.found.batches * HEAVY_TAIL < MIN_EFFECTIVE_ROWS:
            return []
        shares = zip(self.found.row_norms.effective_shares.value.tolist(), self.found.tasks, strict=True)
        return sorted((share, name) for share, name in shares if share < HEAVY_TAIL)

    @functools.cached_property
    def noisy_rows(self) -> str:
        """Noise scale and place of rows whose noise exceeds their signal, as text; empty if there are none."""
        scales = self.found.noise.noise_scales
        measured = ~scales.value.isnan()
        noisy = (scales.low > 1) & measured
        if not bool(noisy.any()):
            return ""
        names = [name for name, is_noisy in zip(self.found.tasks, noisy.tolist(), strict=True) if is_noisy]
        where = "in single rows" if bool((noisy | ~measured).all()) else f"in single rows of {_join(names)}"
        finite = scales.value[noisy & scales.value.isfinite()]
        return f"{number(float(finite.min()))} × or more {where}" if finite.numel() else where

    def names(self, mask: Tensor) -> str:
        """The names of pairs, with the cosines of their expected gradients if these are resolved, the smallest first
        for real conflict."""
        cosines, pairs = self.found.expected.cosines, _listed(mask)
        if mask is self.real:
            pairs.sort(key=lambda pair: float(cosines.value[pair].nan_to_num(nan=2.0)))
        return _join([
            self.found.tasks[i] + " and " + self.found.tasks[j]
            + ("" if bool(cosines.value[i, j].isnan()) else f" ({interval(cosines, i, j, digits=2)})")
            for i, j in pairs
        ])  # fmt: skip

    def some(self, mask: Tensor) -> Values:
        return {"count": int(mask.sum()), "total": int(self.pairs.sum()), "pairs": self.names(mask)}

    def lowest_ratios(self) -> Tensor:
        """The lower ends of norm ratios after correction; 0 if the larger norm is unresolved."""
        ratios, squares, factor = self.found.norm_ratios, self.found.expected.inner_products, self.factor
        # The upper end of an unresolved norm is that of its square.
        low = (squares.value - factor * squares.half_width).diagonal().clamp_min(0)
        unresolved = (low[:, None] / (squares.value + factor * squares.half_width).diagonal()).sqrt()
        resolved = ratios.value * (ratios.low / ratios.value) ** factor  # the interval is that of the logarithm
        return torch.where(ratios.value.isnan(), unresolved, resolved).nan_to_num(nan=0.0, posinf=0.0)

    def batches_needed(self, pair: Pair) -> float:
        """A lower bound of the number of batches after which a pair is resolved: widths decrease as 1/B at most.

        The interval of an inner product must be narrower than its distance from 0, or than `NEGLIGIBLE` as a cosine;
        that of a negative one after multiplication by the factor of Bonferroni's correction.
        """
        products = self.found.expected.inner_products
        norms = [float(self.found.expected.norms.value[task]) for task in pair]
        if not any(map(math.isnan, norms)):
            value, half_width = float(products.value[pair]), float(products.half_width[pair])
            ratios = [half_width / (NEGLIGIBLE * math.prod(norms))]
            if value:
                ratios.append((self.factor if value < 0 else 1.0) * half_width / abs(value))
            return self.found.batches * min(ratios)
        squares = [(task, task) for task in pair if math.isnan(norms[pair.index(task)])]
        ratios = [
            float(products.half_width[place]) / value
            for place in squares
            if (value := float(products.value[place] if products.value[place] > 0 else products.high[place])) > 0
        ]
        return self.found.batches * max(ratios) if ratios else math.inf


# -- conditions of rules: each returns the values of the sentence, or None if the rule does not apply -----------------


def _if(condition: bool) -> Values | None:
    return {} if condition else None


def _named(names: Sequence[str], **others: Any) -> Values | None:
    return {"tasks": _join(names), **others} if names else None


def _rare(facts: _Facts) -> Values | None:
    left_out = facts.found.left_out.items()
    names = [f"{name} ({count} batch{'' if count == 1 else 'es'})" for name, count in left_out]
    return _named(names, min_batches=MIN_BATCHES)


def _harmed(facts: _Facts) -> Values | None:
    found = facts.found
    names = [f"{found.tasks[task]} ({interval(found.step.cosines, task, digits=2)})" for task in _tasks(facts.harmed)]
    return _named(names, methods=METHODS_FOR_CONFLICT)


def _conflict(facts: _Facts) -> Values | None:
    if not bool(facts.real.any()):
        return None
    pairs, methods = facts.names(facts.real), ", ".join(METHODS_FOR_CONFLICT)
    # Measured on pairs of glyphs and on ten regressions: docs/results/where-surgery-helps.md.
    if bool((facts.found.step.products.low[facts.present] > 0).all()):
        few = "the plain step decreases all losses nevertheless. Expect little from methods for conflict"
        return {"pairs": pairs, "advice": f"{few} ({methods})"}
    return {"pairs": pairs, "advice": f"methods for conflict can help: {methods}", "methods": METHODS_FOR_CONFLICT}


def _no_conflict(facts: _Facts) -> Values | None:
    if not facts.no_conflict:
        return None
    cosines = facts.found.expected.cosines.value[facts.positive]
    values = cosines[~cosines.isnan()].tolist()
    measures, more = "inner products of expected gradients are positive or negligible", ""
    if values:
        span = f"{min(values):.2f}" if len(values) == 1 else f"{min(values):.2f} to {max(values):.2f}"
        measures = f"cosines of expected gradients are positive or negligible ({span})"
    rate, independent = _mean_conflict_rates(facts.found, facts.positive)
    if rate >= RARE:
        which = "pairs of single rows" + (" with a positive expectation" if bool(facts.negligible.any()) else "")
        more = f". The {100 * rate:.0f} % of {which} that conflict do so by noise (independent rows: "
        more += f"{100 * independent:.0f} %)"
    if _mean_conflict_rates(facts.found, facts.negligible)[0] >= RARE:
        more += f". Cosines within ±{NEGLIGIBLE} are negligible: the sign of their single inner products has no effect"
    return {"measures": measures, "more": more}


def _mean_conflict_rates(found: DiagnosisResult, pairs: Tensor) -> tuple[float, float]:
    """Mean conflict rates of rows of one batch and of two batches; NaN if no batch has such a pair."""
    same, independent = found.single.conflict_rates.value, found.single.independent_conflict_rates.value
    return float(same[pairs].nanmean()), float(independent[pairs].nanmean())


def _unresolved(facts: _Facts) -> Values | None:
    pairs, batches = _listed(facts.unresolved), facts.found.batches
    needed = [value for pair in pairs if math.isfinite(value := facts.batches_needed(pair))]
    more = f"; at least {_round_up(max(batches + 1, *needed)):,} batches are needed" if needed else ""
    return {**facts.some(facts.unresolved), "batches": batches, "more": more} if pairs else None


def _hidden(facts: _Facts) -> Values | None:
    if not bool(facts.hidden.any()):
        return None
    return {**facts.some(facts.hidden), "effect": float(facts.effects[facts.hidden].max())}


def _differing(facts: _Facts, ratio: str) -> Values | None:
    if not ratio:
        return None
    methods = (AUTO, inverse_norms(facts.found), *METHODS_FOR_NORMS)
    return {"ratio": ratio, "balancing": ", ".join((AUTO, *METHODS_FOR_NORMS)), "methods": methods}


def _heavy_tails(facts: _Facts) -> Values | None:
    names = [f"{name} ({100 * share:.0f} %)" for share, name in facts.heavy]
    return _named(names, bounding=", ".join(METHODS_FOR_TAILS), methods=METHODS_FOR_TAILS)


def _average_more(facts: _Facts) -> Values | None:
    """Noise in rows, in the plain step, or in both."""
    rows, step, noisy_step = facts.noisy_rows, facts.step_noise, facts.noisy_step
    if not facts.has_noise or not (rows or (noisy_step and not facts.cancels)):
        return None
    measurable, places = math.isfinite(float(step.low)), [rows] if rows else []
    if noisy_step:
        places.insert(0, f"{ratio_range(step, unit=' ×')} in the plain step" if measurable else "in the plain step")
    signal = f" No signal is measurable in the plain step with {facts.found.batches} batches."
    return {
        "places": " and ".join(places),
        "act": ": methods that compare single rows act on noise" if rows else "",
        "more": "examples, tasks or batches in a step" if noisy_step else "examples or batches in each row",
        "signal": "" if measurable else signal,
    }


def _quiet_step(facts: _Facts, applies: bool) -> Values | None:
    """A plain step that is not noisy, if a condition on its noise scale holds."""
    found = {"scale": ratio_range(facts.step_noise), "batches": facts.found.batches}
    return found if applies and facts.has_noise and not facts.noisy_step else None


def _canceling_step(facts: _Facts) -> Values | None:
    if not facts.has_noise or not facts.noisy_step or facts.noisy_rows or not facts.cancels:
        return None
    step = facts.step_noise
    scale = f"noise scale {ratio_range(step)}" if math.isfinite(float(step.low)) else "no measurable signal"
    return {"scale": scale, "rows": number(facts.largest_row_noise)}


def _shared_noise(facts: _Facts) -> Values | None:
    """Pairs with correlated noise, unless noise is negligible in both of their rows."""
    found, correlations = facts.found, facts.found.noise.correlations
    noisy = found.noise.noise_scales.value > NEGLIGIBLE
    certain = (correlations.low > NEGLIGIBLE) | (correlations.high < -NEGLIGIBLE)
    pairs = _listed((certain & (noisy[:, None] | noisy)).triu(1))
    pairs.sort(key=lambda pair: -abs(float(correlations.value[pair])))
    named = [f"{found.tasks[i]} and {found.tasks[j]} ({interval(correlations, i, j, digits=2)})" for i, j in pairs]
    return _named(named)


def _plain_mean(facts: _Facts) -> Values | None:
    """The intervals of the norm ratios of all pairs that are not aligned are within 1/2 and 2."""
    high = facts.found.norm_ratios.high
    similar = bool((torch.maximum(high, high.mT)[facts.pairs & ~facts.aligned] < DIFFERENT_NORMS).all())
    return _if(facts.no_conflict and not facts.row_ratio and not facts.heavy and similar)


Find = Callable[[_Facts], Values | None]

INVALID: dict[str, Find] = {
    "accumulated_rows": lambda facts: _if(facts.found.accumulated),
    "summed_loss": lambda facts: _if(facts.found.parallel and not facts.found.accumulated),
}
"""Rules after which no other one applies, by code."""

RULES: dict[str, Find] = {
    "total_as_task": lambda facts: _named(facts.found.summed),
    "dependent_rows": lambda facts: _if(facts.found.dependent and not facts.found.summed),
    "zero_gradient": lambda facts: _named([facts.found.tasks[task] for task in _tasks(~facts.present)]),
    "rare_task": _rare,
    "harmed_task": _harmed,
    "conflict": _conflict,
    "no_conflict": _no_conflict,
    "unresolved": _unresolved,
    "hidden_by_noise": _hidden,
    "norms_differ": lambda facts: _differing(facts, facts.expected_ratio),
    "row_norms_differ": lambda facts: _differing(facts, facts.row_ratio),
    "heavy_tails": _heavy_tails,
    "no_noise": lambda facts: _if(not facts.has_noise and not bool(facts.step_noise.value.isnan())),
    "average_more": _average_more,
    "noise_unresolved": lambda facts: _quiet_step(facts, math.isinf(float(facts.step_noise.high))),
    "little_noise": lambda facts: _quiet_step(facts, float(facts.step_noise.high) < 1),
    "noise_like_signal": lambda facts: _quiet_step(facts, 1 <= float(facts.step_noise.high) < math.inf),
    "plain_step_cancels": _canceling_step,
    "shared_noise": _shared_noise,
    "plain_mean": _plain_mean,
}
"""The conditions of the other rules by code, the most important first; `recommendations.toml` has their sentences."""


@functools.cache
def _sentences() -> dict[str, str]:
    text = Path(__file__).with_name("recommendations.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def recommend(found: DiagnosisResult) -> tuple[Recommendation, ...]:
    """Apply all rules; the most important sentence is the first. The guide lists codes and conditions.

    Real conflict is claimed for a pair if the interval of its inner product is below zero after Bonferroni's correction
    for the number of pairs; that there is none, if the intervals of all pairs are above zero, or negligible.
    """
    facts = _Facts(found)
    return _apply(INVALID, facts) or _apply(RULES, facts)


def _apply(rules: dict[str, Find], facts: _Facts) -> tuple[Recommendation, ...]:
    found = [(code, values) for code, find in rules.items() if (values := find(facts)) is not None]
    return tuple(
        Recommendation(code, _sentences()[code].format(**values), values.get("methods", ())) for code, values in found
    )


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


def _bonferroni(count: int, batches: int) -> float:
    """The factor of the half width of an interval after correction for the number of intervals."""
    tail = (1 - LEVEL) / 2
    return student_quantile(tail / count, batches - 1) / student_quantile(tail, batches - 1)


def _tasks(mask: Tensor) -> list[int]:
    return [task for task, is_in in enumerate(mask.tolist()) if is_in]


def _listed(mask: Tensor) -> list[Pair]:
    return [(first, second) for first, second in torch.nonzero(mask).tolist()]


def _join(names: Sequence[str]) -> str:
    """The first names as one text, and the number of the others."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _round_up(value: float) -> int:
    """The next integer with two significant digits."""
    whole = math.ceil(value)
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit

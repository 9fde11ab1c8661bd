"""Rules for noise in the plain step and in single rows, and for noise that tasks share."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import interval, number, ratio_range
from gradhomog.diagnosis.result import DiagnosisResult, Recommendation
from gradhomog.diagnosis.rule_parts import NEGLIGIBLE, join


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

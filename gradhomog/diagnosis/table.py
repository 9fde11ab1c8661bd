"""A diagnosis as text: a table by task, a table by pair of tasks, and the recommendation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gradhomog.diagnosis.measurement import Measurement
from gradhomog.diagnosis.numbers import UNRESOLVED, interval, ratio_range, significant
from gradhomog.diagnosis.recommendation import Recommendation
from gradhomog.text_table import align_columns

MAX_PAIRS = 15
WIDTH = 110
NOTES = (
    "± and ( to ): 95 % intervals by the jackknife over batches. E g: expected gradient, without noise.",
    "cos to step: cosine of E g and the mean of all E g; if negative, the plain step increases the loss of the task.",
    f"{UNRESOLVED}: noise of the estimate may be all of a squared norm. Measure more batches.",
    "signal: ‖E g‖² / E‖g‖². noise scale: batches in whose average the signal equals the noise.",
    "conflict: pairs of rows of one batch with a negative inner product; independent: of two batches, so by noise",
    "around the same E g; if aligned: if the cosine of the E g were 1. noise: correlation within a batch.",
)


def render(found: Measurement, recommendation: Sequence[Recommendation]) -> str:
    """The tables, the recommendation with codes, and notes."""
    sketch = f", sketched to {found.columns:,}" if found.cosine_error else ""
    lines = [f"{found.batches} batches, {found.params:,} parameters{sketch}", "", *align_columns(task_cells(found))]
    if len(found.tasks) > 1:
        order = pair_order(found)
        lines += ["", *align_columns(pair_cells(found, order[:MAX_PAIRS]))]
        if len(order) > MAX_PAIRS:
            lines.append(f"… and {len(order) - MAX_PAIRS} pairs with larger cosines, or unresolved ones")
    lines += ["", "Recommendation"]
    for one in recommendation:
        lines += textwrap.wrap(f"[{one.code}] {one.text}", WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join([*lines, "", *NOTES])


def task_cells(found: Measurement) -> list[list[str]]:
    """The texts of the cells by task, and of the mean row of a batch; the header first."""
    lines = [["task", "‖g‖", "‖E g‖", "cos to step", "signal %", "noise scale"]]
    single, expected, scales = found.single, found.expected, found.noise.noise_scales
    for index, name in enumerate(found.tasks):
        lines.append([
            name, significant(single.norms, index), significant(expected.norms, index),
            interval(found.step.cosines, index, digits=2), interval(expected.signal_fractions, index, percent=True),
            ratio_range(scales, index),
        ])  # fmt: skip
    step = found.noise.step_signal_fraction, found.noise.step_noise_scale
    lines.append(["mean of the batch", "", "", "", interval(step[0], percent=True), ratio_range(step[1])])
    if found.batch_size is not None:
        lines[0].append("in examples")
        for index, line in enumerate(lines[1:-1]):
            line.append(ratio_range(scales, index, factor=found.batch_size))
        lines[-1].append(ratio_range(step[1], factor=found.batch_size))
    return lines


def pair_order(found: Measurement) -> list[tuple[int, int]]:
    """All pairs of different tasks, the smallest cosine of expected gradients first, unresolved ones last."""
    tasks, cosines = len(found.tasks), found.expected.cosines.value
    pairs = [(first, second) for first in range(tasks) for second in range(first + 1, tasks)]
    return sorted(pairs, key=lambda pair: float(cosines[pair].nan_to_num(nan=2.0)))


def pair_cells(found: Measurement, pairs: Sequence[tuple[int, int]]) -> list[list[str]]:
    """The texts of the cells by pair of tasks; the header first."""
    header = ["pair", "cos g", "cos E g", "norm ratio", "conflict %", "independent %", "if aligned %", "noise"]
    single, expected = found.single, found.expected
    lines = [header]
    for pair in pairs:
        lines.append([
            f"{found.tasks[pair[0]]}, {found.tasks[pair[1]]}", interval(single.cosines, *pair, digits=2),
            interval(expected.cosines, *pair, digits=2), ratio_range(found.norm_ratios, *pair),
            *(interval(rates, *pair, percent=True, digits=0) for rates in (
                single.conflict_rates, single.independent_conflict_rates, expected.aligned_conflict_rates)),
            interval(found.noise.correlations, *pair, digits=2),
        ])  # fmt: skip
    if len(found.tasks) > 2:
        rates = (single.conflict_rate, single.independent_conflict_rate)
        lines.append([
            "all pairs", interval(single.mean_cosine, digits=2), interval(expected.pooled_cosine, digits=2), "",
            *(interval(rate, percent=True, digits=0) for rate in rates), "", "",
        ])  # fmt: skip
    return lines

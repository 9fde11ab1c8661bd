"""The result of a diagnosis: estimates, a recommendation, and both as text and for JSON."""

import html
import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from gradhomog.diagnosis import estimates
from gradhomog.diagnosis.estimates import UNRESOLVED, TransformedEstimate, interval, ratio_range, significant
from gradhomog.diagnosis.row_statistics import ExpectedGradients, Noise, RowNorms, SingleRows, StepAlignment
from gradhomog.table import Table

INVALID = frozenset({"accumulated_rows", "summed_loss", "total_as_task", "dependent_rows"})
"""Codes of rows that are not gradients of separate losses."""

MAX_PAIRS = 15
MAX_NAMED = 6
WIDTH = 110
NOTES = (
    "± and ( to ): 95 % intervals by the jackknife over batches. E g: expected gradient, without noise.",
    "cos to step: cosine of E g and the expected mean of a batch; if negative, the plain step increases the loss.",
    f"{UNRESOLVED}: the norm of E g cannot be distinguished from 0.",
    "signal: ‖E g‖² / E‖g‖². noise scale: batches in whose average the signal equals the noise.",
    "conflict: pairs of rows of one batch with a negative inner product; independent: of two batches, so by noise",
    "around the same E g; if aligned: if the cosine of the E g were 1. noise: correlation within a batch.",
)

SKETCH_NOTE = "sketched: rates of conflict are biased towards 50 % where cosines of rows are below √(2 / columns)."


@final
@dataclass(frozen=True)
class Recommendation:
    """A sentence of the recommendation, with the code of its rule.

    Attributes:
        methods: expressions of `gradhomog.pipeline` to compare with the plain mean, the first choice first.
    """

    code: str
    text: str
    methods: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class DiagnosisResult:
    """The result of `gradhomog.Diagnosis`: estimates about the rows of K tasks (or of tasks from K domains).

    Estimates have `value`, `low` and `high`, the ends of a 95 % interval, as float64 tensors: scalars, `[tasks]` or
    `[tasks, tasks]`. NaN is undefined or unresolved. The main ones: `expected.cosines`, `expected.signal_fractions`,
    `norm_ratios`, `step.cosines`, `noise.noise_scales`, `noise.step_noise_scale`, `noise.correlations`,
    `single.conflict_rates` and `single.independent_conflict_rates`.

    Attributes:
        tasks: the names of the K tasks or domains, in the order of all estimates.
        left_out: the other tasks, which have rows in fewer than three batches; the number of these batches by name.
        batches: number of batches that have a row of `tasks`.
        params: number of parameters of a row.
        columns: numbers per stored row; smaller than `params` if rows were sketched.
        batch_size: examples per task and batch; None if unknown.
        single: means over single rows, as a method receives them: signal and noise together.
        row_norms: ratios of typical norms of single rows, and the effective share of rows in the mean squared norm.
        expected: estimates about the expected gradients, without noise.
        norm_ratios: ratios of norms of expected gradients `[K, K]`, row over column.
        step: alignment of expected gradients with the plain step.
        noise: estimates about the noise.
        accumulated: True if rows contain the rows before them, as without `zero_grad()`.
        parallel: True if the rows of every batch are multiples of one gradient.
        summed: tasks whose row is a multiple of the sum of the others.
        dependent: True if the rows of every batch are linearly dependent.
        recommendation: sentences with a code each, the most important first; the codes are documented in the guide.
    """

    tasks: tuple[str, ...]
    left_out: Mapping[str, int]
    batches: int
    params: int
    columns: int
    batch_size: int | None
    single: SingleRows
    row_norms: RowNorms
    expected: ExpectedGradients
    norm_ratios: TransformedEstimate
    step: StepAlignment
    noise: Noise
    accumulated: bool
    parallel: bool
    summed: tuple[str, ...]
    dependent: bool
    recommendation: tuple[Recommendation, ...] = ()

    @property
    def cosine_error(self) -> float:
        """Bound of the standard deviation of a cosine by the sketch of the rows; 0 if rows are stored exactly."""
        return (2 / self.columns) ** 0.5 if self.columns < self.params else 0.0

    @property
    def methods(self) -> tuple[str, ...]:
        """Expressions of `gradhomog.pipeline` to compare with the plain mean, the first choice first; may be empty."""
        return tuple(dict.fromkeys(method for one in self.recommendation for method in one.methods))

    @property
    def advice(self) -> str:
        """The recommendation in one sentence."""
        codes = [one.code for one in self.recommendation]
        if INVALID & set(codes):
            return f"The rows are probably not gradients of separate losses ({codes[0]}): correct them first."
        if self.methods:
            return f"Compare the plain mean with {' and '.join(self.methods[:2])}."
        if "unresolved" in codes:
            return "Measure more batches: whether tasks conflict is unresolved."
        if "average_more" in codes:
            return "Use the plain mean, and average more: noise exceeds signal, and no method is expected to help."
        return "Use the plain mean: no method is expected to help."

    def compare_command(self, run_file: str = "RUN.toml") -> str:
        """The shell command that compares the recommended methods with the plain mean; empty without methods."""
        methods = json.dumps(["none", *self.methods], ensure_ascii=False)
        return f"gradhomog compare {run_file} --set {shlex.quote(f'homogenizers={methods}')}" if self.methods else ""

    def __repr__(self) -> str:
        codes = ", ".join(one.code for one in self.recommendation)
        tasks = ", ".join(self.tasks[:MAX_NAMED]) + (", …" if len(self.tasks) > MAX_NAMED else "")
        return f"{self.advice}\n{len(self.tasks)} tasks, {self.batches} batches: {tasks}\n{codes}"

    def _repr_html_(self) -> str:
        tables = [_task_table(self).html()]
        if len(self.tasks) > 1:
            tables.append(_pair_table(self, pair_order(self)[:MAX_PAIRS]).html())
        sentences = [f"<li>[{one.code}] {html.escape(one.text)}</li>" for one in self.recommendation]
        return f"<p>{html.escape(self.advice)}</p>{''.join(tables)}<ul>{''.join(sentences)}</ul>"

    def table(self, run_file: str = "RUN.toml") -> str:
        """Return the advice, estimates by task and by pair of tasks, the recommendation and notes, as aligned text.

        `run_file`: the run file in the command that compares the recommended methods.
        """
        sketch = f", sketched to {self.columns:,}" if self.cosine_error else ""
        sizes = f"{self.batches} batches, {self.params:,} parameters{sketch}"
        lines = [self.advice, "", sizes, "", *_task_table(self).lines()]
        if len(self.tasks) > 1:
            order = pair_order(self)
            lines += ["", *_pair_table(self, order[:MAX_PAIRS]).lines()]
            if len(order) > MAX_PAIRS:
                lines.append(f"… and {len(order) - MAX_PAIRS} pairs with larger cosines, or unresolved ones")
        lines += ["", "Recommendation"]
        for one in self.recommendation:
            lines += textwrap.wrap(f"[{one.code}] {one.text}", WIDTH, initial_indent="- ", subsequent_indent="  ")
        if command := self.compare_command(run_file):
            lines += ["", command]
        return "\n".join([*lines, "", *NOTES, *([SKETCH_NOTE] if self.cosine_error else [])])

    def record(self) -> dict[str, Any]:
        """Return everything for JSON, in plain lists; NaN is None, and infinity is "inf"."""
        found: dict[str, Any] = estimates.record(self)
        sentences = [{"code": one.code, "text": one.text} for one in self.recommendation]
        more = {"cosine_error": self.cosine_error, "advice": self.advice, "methods": list(self.methods)}
        return {**found, **more, "recommendation": sentences}


def _task_table(found: DiagnosisResult) -> Table:
    """Estimates by task, and of the mean row of a batch."""
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
    return Table(lines[0], lines[1:])


def pair_order(found: DiagnosisResult) -> list[tuple[int, int]]:
    """All pairs of different tasks, the smallest cosine of expected gradients first, unresolved ones last."""
    tasks, cosines = len(found.tasks), found.expected.cosines.value
    pairs = [(first, second) for first in range(tasks) for second in range(first + 1, tasks)]
    return sorted(pairs, key=lambda pair: float(cosines[pair].nan_to_num(nan=2.0)))


def _pair_table(found: DiagnosisResult, pairs: Sequence[tuple[int, int]]) -> Table:
    """Estimates by pair of tasks."""
    header = ["pair", "cos g", "cos E g", "norm ratio", "conflict %", "independent %", "if aligned %", "noise"]
    single, expected = found.single, found.expected
    rows = []
    for pair in pairs:
        rows.append([
            f"{found.tasks[pair[0]]}, {found.tasks[pair[1]]}", interval(single.cosines, *pair, digits=2),
            interval(expected.cosines, *pair, digits=2), ratio_range(found.norm_ratios, *pair),
            *(interval(rates, *pair, percent=True, digits=0) for rates in (
                single.conflict_rates, single.independent_conflict_rates, expected.aligned_conflict_rates)),
            interval(found.noise.correlations, *pair, digits=2),
        ])  # fmt: skip
    if len(found.tasks) > 2:
        rates = (single.conflict_rate, single.independent_conflict_rate)
        rows.append([
            "all pairs", interval(single.mean_cosine, digits=2), interval(expected.pooled_cosine, digits=2), "",
            *(interval(rate, percent=True, digits=0) for rate in rates), "", "",
        ])  # fmt: skip
    return Table(header, rows)

"""The table of a timing: one row per workload, with its time, its ratio to a reference and its memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gradhomog.experiments.results.events import json_compatible
from gradhomog.table import LEVEL, NOTHING, Table


@dataclass(frozen=True)
class Quantiles:
    """The median of n values, with its 95 % confidence interval.

    Attributes:
        low, high: the interval of the median; NaN for fewer than six values, which have no interval at 95 %.
    """

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """Compute the median of values.

        The interval is that of order statistics: the k-th smallest to the k-th largest value, for the largest k with
        2 · P(Binomial(n, 1/2) < k) ≤ 0.05. It is valid for independent values of any distribution.
        """
        ordered = sorted(values)
        n = len(ordered)
        rank = _rank(n)
        return cls(
            statistics.median(ordered),
            ordered[rank - 1] if rank else math.nan,
            ordered[n - rank] if rank else math.nan,
            n,
        )  # fmt: skip


def _rank(n: int) -> int:
    """The largest k with 2 · P(Binomial(n, 1/2) < k) ≤ 1 − level; 0 if there is no such k."""
    rank, tail = 0, 0
    while True:
        tail += math.comb(n, rank)
        if 2 * tail > (1 - LEVEL) * 2**n:
            return rank
        rank += 1


@dataclass(frozen=True)
class TimingRow:
    """The measurements of one workload.

    Attributes:
        seconds: time of a call.
        ratio: ratio of its time to that of the reference.
        peak_bytes: see `memory.peak_bytes`; None if not measured.
        state_bytes: size of the state of its homogenizers.
    """

    label: str
    seconds: Quantiles
    ratio: Quantiles
    peak_bytes: int | None = None
    state_bytes: int = 0


@dataclass(frozen=True)
class Column:
    """An additional column.

    Attributes:
        values: values by label of a row; the cells of rows without a value are `–`.
        text: converts a value to text.
    """

    title: str
    values: Mapping[str, Quantiles | float]
    text: Callable[[Any], str]


def ratios(title: str, values: Mapping[str, Quantiles]) -> Column:
    """A column of medians of ratios."""
    return Column(title, values, ratio_cell)


@dataclass(frozen=True)
class TimingTable:
    """Workloads that were timed alternately.

    Attributes:
        reference: label of the workload that the others are compared with.
        notes: lines that explain the numbers.
        failures: the message of each workload that failed, by label.
        columns: additional columns, after the ratio to the reference.
    """

    title: str
    reference: str
    rows: tuple[TimingRow, ...]
    notes: tuple[str, ...]
    failures: dict[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()

    def added_bytes(self, row: TimingRow) -> int | None:
        """Memory in addition to that of the reference, including the state; None if not measured."""
        base = next((other for other in self.rows if other.label == self.reference), None)
        if base is None or base.peak_bytes is None or row.peak_bytes is None:
            return None
        return row.peak_bytes + row.state_bytes - base.peak_bytes - base.state_bytes

    def table(self) -> Table:
        """The table of texts, with notes and failures."""
        with_memory = any(row.peak_bytes is not None for row in self.rows)
        titles = [f"to {self.reference}", "95 %", *(column.title for column in self.columns)]
        header = ["method", "time", *titles, *(["memory"] if with_memory else []), "rounds"]
        lines = []
        for row in self.rows:
            is_reference = row.label == self.reference
            ratio = [NOTHING, NOTHING] if is_reference else [ratio_cell(row.ratio), interval_cell(row.ratio)]
            additional = [
                column.text(column.values[row.label]) if row.label in column.values else NOTHING
                for column in self.columns
            ]
            used = [self._memory(row)] if with_memory else []
            lines.append([row.label, time_text(row.seconds.median), *ratio, *additional, *used, str(row.seconds.n)])
        failed = [f"Failed: {label}: {message}" for label, message in self.failures.items()]
        return Table(header, lines, [*self.notes, *failed])

    def render(self) -> str:
        """Title and table as text."""
        return f"{self.title}\n\n{self.table().text()}"

    def record(self) -> dict[str, Any]:
        """The table as plain data for JSON, in seconds, ratios and bytes; rows have the values of all columns."""
        content: dict[str, Any] = json_compatible(asdict(self))
        columns = content.pop("columns")
        for row, entry in zip(self.rows, content["rows"], strict=True):
            entry["added_bytes"] = self.added_bytes(row)
            entry |= {column["title"]: column["values"].get(row.label) for column in columns}
        return content

    def _memory(self, row: TimingRow) -> str:
        """Memory as text: the total for the reference, the difference to it for other rows."""
        if row.peak_bytes is None:
            return NOTHING
        if row.label == self.reference:
            return f"{three_digits((row.peak_bytes + row.state_bytes) / 1e6)} MB"
        added = self.added_bytes(row)
        return NOTHING if added is None else f"{signed(added / 1e6)} MB"


def ratio_cell(ratio: Quantiles) -> str:
    """The median: `× 1.04`, or a fraction if it is small: `1/52`."""
    median = ratio_text(ratio.median)
    return median if "/" in median else f"× {median}"


def interval_cell(ratio: Quantiles) -> str:
    """The interval of the median: `1.02 – 1.06`; `n/a` without an interval."""
    return "n/a" if math.isnan(ratio.low) else f"{ratio_text(ratio.low)} – {ratio_text(ratio.high)}"


def ratio_text(value: float) -> str:
    """A ratio as text: `1.04`, `29.3`, or a fraction if it is small: `1/52`."""
    if value < 0.25:
        return f"1/{1 / value:.3g}" if value > 0.001 else f"1/{1 / value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def time_text(seconds: float) -> str:
    """A time with three digits, in seconds, milliseconds, microseconds or nanoseconds."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{three_digits(seconds * factor)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def signed(value: float) -> str:
    """As `three_digits`, with a sign: `+0.00`, `-1.25`."""
    text = three_digits(abs(value))
    return f"{'-' if value < 0 and float(text.replace(',', '')) else '+'}{text}"


def three_digits(value: float) -> str:
    """A number with three significant digits and at most two decimals, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

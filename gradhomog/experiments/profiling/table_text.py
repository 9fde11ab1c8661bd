"""A table of timings as aligned text."""

from __future__ import annotations

import math

from gradhomog.experiments.profiling.quantiles import Quantiles
from gradhomog.experiments.profiling.table import Table, TimingRow
from gradhomog.table import NOTHING
from gradhomog.table import Table as TextTable

INTERVAL_NOTE = (
    "95 %: confidence interval of the median to its left, by order statistics; n/a for fewer than six rounds."
)
MEMORY_NOTE = "memory: peak of the CPU tensors that one additional call allocates, without scratch memory of libraries"


def render(table: Table) -> str:
    """The table as text, followed by its notes and failures."""
    header, *rows = cells(table)
    failed = [f"Failed: {label}: {message}" for label, message in table.failures.items()]
    return "\n".join([table.title, "", *TextTable(header, rows).lines(), "", *table.notes, *failed])


def cells(table: Table) -> list[list[str]]:
    """The texts of the cells: the header, and one list per row."""
    with_memory = any(row.peak_bytes is not None for row in table.rows)
    lines = [["method", "time", f"to {table.reference}", "95 %", *(["memory"] if with_memory else []), "rounds"]]
    for row in table.rows:
        ratio = (
            [NOTHING, NOTHING] if row.label == table.reference else [ratio_cell(row.ratio), interval_cell(row.ratio)]
        )
        memory = [memory_text(table, row)] if with_memory else []
        lines.append([row.label, time_text(row.seconds.median), *ratio, *memory, str(row.seconds.n)])
    return lines


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


def memory_text(table: Table, row: TimingRow) -> str:
    """Memory as text: the total for the reference, the difference to it for other rows."""
    if row.peak_bytes is None:
        return NOTHING
    if row.label == table.reference:
        return f"{three_digits((row.peak_bytes + row.state_bytes) / 1e6)} MB"
    added = table.added_bytes(row)
    return NOTHING if added is None else f"{signed(added / 1e6)} MB"


def signed(value: float) -> str:
    """As `three_digits`, with a sign: `+0.00`, `-1.25`."""
    text = three_digits(abs(value))
    return f"{'-' if value < 0 and float(text.replace(',', '')) else '+'}{text}"


def three_digits(value: float) -> str:
    """A number with three significant digits and at most two decimals, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

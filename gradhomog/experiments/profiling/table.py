"""The table of a cost measurement, as text and as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradhomog.experiments.profiling.spread import Spread
from gradhomog.experiments.profiling.timing import Timings
from gradhomog.experiments.report.tables import NOTHING, aligned

INTERVAL_NOTE = "95 %: interval of the median before it, by order statistics; n/a below six rounds."
MEMORY_NOTE = "memory: peak of the CPU tensors that one further call allocates, without libraries' own scratch memory"
SHARE_NOTE = "Each has an equal share of the time, so slow ones have fewer rounds."


@dataclass(frozen=True)
class Row:
    """One work.

    Attributes:
        seconds: of a call.
        ratios: to each reference, by its label.
        peak_bytes: see `memory.peak_bytes`; None if it was not measured.
        held_bytes: what its homogenizers keep from step to step.
        cosine: between what it finds and what is right; None if that was not measured.
        beyond: seconds by which it is slower than the first reference; None if the table is not about that.
        to_peer: ratio to what it competes with; None if there is nothing.
    """

    label: str
    seconds: Spread
    ratios: dict[str, Spread]
    peak_bytes: int | None = None
    held_bytes: int = 0
    cosine: float | None = None
    beyond: Spread | None = None
    to_peer: Spread | None = None


@dataclass(frozen=True)
class Table:
    """Works measured in turn.

    Attributes:
        references: labels of the works that others are compared with; memory is compared with the first.
        failures: by label, the message of works that failed.
        notes: lines that say what the numbers are.
    """

    title: str
    references: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    failures: dict[str, str] = field(default_factory=dict)

    def added_bytes(self, row: Row) -> int | None:
        """Memory over that of the first reference, with what the homogenizers keep."""
        base = next((other for other in self.rows if other.label == self.references[0]), None)
        if base is None or base.peak_bytes is None or row.peak_bytes is None:
            return None
        return row.peak_bytes + row.held_bytes - base.peak_bytes - base.held_bytes


def rows(
    timings: Timings,
    references: Iterable[str],
    *,
    paired: bool,
    peaks: Mapping[str, int],
    held: Mapping[str, int],
    cosines: Mapping[str, float] = MappingProxyType({}),
    difference: bool = False,
    peers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Row, ...]:
    """One row per work that was timed.

    With `paired` a ratio is to the reference in the same round; else to the median of the reference, for works that
    do not share their rounds. `difference` and `peers`: as of `Trial`; a peer that failed is compared with nothing.
    """
    first, *_ = references = tuple(references)
    found = []
    for label in timings.seconds:
        own = timings.counted(label)
        if not own or label in timings.failures:
            continue
        ratios: dict[str, Spread] = {}
        for reference in references:
            if paired:
                values = timings.ratios(label, reference)
            else:
                below = Spread.of(list(timings.counted(reference).values())).median
                values = [taken / below for taken in own.values()]
            ratios[reference] = Spread.of(values)
        beyond = Spread.of(timings.differences(label, first)) if difference and label != first else None
        peer = peers.get(label)
        known = peer in timings.seconds and peer not in timings.failures
        to_peer = Spread.of(timings.ratios(label, peer)) if peer is not None and known else None
        spread = Spread.of(list(own.values()))
        peak, kept, cosine = peaks.get(label), held.get(label, 0), cosines.get(label)
        found.append(Row(label, spread, ratios, peak, kept, cosine, beyond, to_peer))
    return tuple(found)


def render(table: Table) -> str:
    """Aligned text, with the notes under it."""
    with_memory = any(row.peak_bytes is not None for row in table.rows)
    with_cosine = any(row.cosine is not None for row in table.rows)
    with_difference = any(row.beyond is not None for row in table.rows)
    with_peers = any(row.to_peer is not None for row in table.rows)
    first, *others = table.references  # the interval is that of the ratio to the first
    header = ["method", "time", f"to {first}", "95 %", *(f"to {name}" for name in others)]
    header += [f"over {first}"] * with_difference + ["to peer"] * with_peers
    lines = [[*header, *(["memory"] if with_memory else []), *(["cosine"] if with_cosine else []), "rounds"]]
    for row in table.rows:
        cells = [row.label, time_text(row.seconds.median)]
        cells += [NOTHING] * 2 if row.label == first else ratio_cells(row.ratios[first])
        cells += [NOTHING if row.label == name else ratio_cells(row.ratios[name])[0] for name in others]
        if with_difference:
            cells.append(NOTHING if row.beyond is None else difference_text(row.beyond.median))
        if with_peers:
            cells.append(NOTHING if row.to_peer is None else ratio_cells(row.to_peer)[0])
        if with_memory:
            cells.append(memory_text(table, row))
        if with_cosine:
            cells.append(NOTHING if row.cosine is None else f"{row.cosine:.6f}")
        lines.append([*cells, str(row.seconds.n)])
    failed = [f"Failed: {label}: {message}" for label, message in table.failures.items()]
    return "\n".join([table.title, "", *aligned(lines), "", *table.notes, *failed])


def ratio_cells(ratio: Spread) -> list[str]:
    """The median, and its interval."""
    interval = "n/a" if math.isnan(ratio.low) else f"{ratio_text(ratio.low)} – {ratio_text(ratio.high)}"
    median = ratio_text(ratio.median)
    return [median if "/" in median else f"× {median}", interval]


def ratio_text(value: float) -> str:
    """`1.04`, `29.3`, and as a fraction what is small: `1/52`."""
    if value < 0.25:
        return f"1/{1 / value:.3g}" if value > 0.001 else f"1/{1 / value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def time_text(seconds: float) -> str:
    """With three digits, in seconds, milliseconds or microseconds."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{digits(seconds * factor)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def difference_text(seconds: float) -> str:
    """In milliseconds, always: `+0.12 ms`."""
    return f"{_signed(seconds * 1e3)} ms"


def memory_text(table: Table, row: Row) -> str:
    """That of the first reference as it is, of the others what they add."""
    if row.peak_bytes is None:
        return NOTHING
    if row.label == table.references[0]:
        return f"{digits((row.peak_bytes + row.held_bytes) / 1e6)} MB"
    added = table.added_bytes(row)
    return NOTHING if added is None else f"{_signed(added / 1e6)} MB"


def _signed(value: float) -> str:
    text = digits(abs(value))
    return f"{'-' if value < 0 and float(text.replace(',', '')) else '+'}{text}"


def digits(value: float) -> str:
    """Three significant digits, never an exponent; at most two decimals."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def to_json(table: Table) -> dict[str, Any]:
    """Plain data: seconds, ratios, bytes."""
    return {
        "title": table.title,
        "references": list(table.references),
        "rows": [
            {
                "label": row.label,
                "seconds": row.seconds.record(),
                "ratios": {name: ratio.record() for name, ratio in row.ratios.items()},
                "peak_bytes": row.peak_bytes,
                "held_bytes": row.held_bytes,
                "added_bytes": table.added_bytes(row),
                "cosine": row.cosine,
                "beyond": row.beyond and row.beyond.record(),
                "to_peer": row.to_peer and row.to_peer.record(),
            }
            for row in table.rows
        ],
        "failures": table.failures,
        "notes": list(table.notes),
    }

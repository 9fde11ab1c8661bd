"""The result of timing: one row per work, with its time, its ratio to a reference and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradhomog.experiments.profiling.quantiles import Quantiles
from gradhomog.experiments.profiling.timing import Timings


@dataclass(frozen=True)
class Row:
    """One work.

    Attributes:
        seconds: of a call.
        ratio: to the reference.
        peak_bytes: see `memory.peak_bytes`; None if it was not measured.
        held_bytes: the state of its homogenizers.
    """

    label: str
    seconds: Quantiles
    ratio: Quantiles
    peak_bytes: int | None = None
    held_bytes: int = 0


@dataclass(frozen=True)
class Table:
    """Works that were timed in turn.

    Attributes:
        reference: label of the work that the others are compared with.
        notes: lines that explain the numbers.
        failures: by label, the message of works that failed.
    """

    title: str
    reference: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    failures: dict[str, str] = field(default_factory=dict)

    def added_bytes(self, row: Row) -> int | None:
        """Memory beyond that of the reference, state included; None if it was not measured."""
        base = next((other for other in self.rows if other.label == self.reference), None)
        if base is None or base.peak_bytes is None or row.peak_bytes is None:
            return None
        return row.peak_bytes + row.held_bytes - base.peak_bytes - base.held_bytes


def rows(
    timings: Timings,
    reference: str,
    *,
    peaks: Mapping[str, int] = MappingProxyType({}),
    held: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Row, ...]:
    """One row per work that did not fail; ratios are within rounds. `peaks` and `held` are bytes by label."""
    return tuple(
        Row(
            label,
            Quantiles.of([*timings.counted(label).values()]),
            Quantiles.of(timings.ratios(label, reference)),
            peaks.get(label),
            held.get(label, 0),
        )
        for label, seconds in timings.seconds.items()
        if seconds and label not in timings.failures
    )


def to_json(table: Table) -> dict[str, Any]:
    """Plain data: seconds, ratios, bytes."""
    return {
        "title": table.title,
        "reference": table.reference,
        "rows": [
            {
                "label": row.label,
                "seconds": row.seconds.record(),
                "ratio": row.ratio.record(),
                "peak_bytes": row.peak_bytes,
                "held_bytes": row.held_bytes,
                "added_bytes": table.added_bytes(row),
            }
            for row in table.rows
        ],
        "failures": table.failures,
        "notes": list(table.notes),
    }

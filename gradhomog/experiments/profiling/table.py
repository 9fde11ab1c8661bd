"""The table of a timing: one row per workload, with its time, its ratio to a reference and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradhomog.experiments.profiling.quantiles import Quantiles
from gradhomog.experiments.profiling.timing import Timings


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
class Table:
    """Workloads that were timed alternately.

    Attributes:
        reference: label of the workload that the others are compared with.
        notes: lines that explain the numbers.
        failures: the message of each workload that failed, by label.
    """

    title: str
    reference: str
    rows: tuple[TimingRow, ...]
    notes: tuple[str, ...]
    failures: dict[str, str] = field(default_factory=dict)

    def added_bytes(self, row: TimingRow) -> int | None:
        """Memory in addition to that of the reference, including the state; None if not measured."""
        base = next((other for other in self.rows if other.label == self.reference), None)
        if base is None or base.peak_bytes is None or row.peak_bytes is None:
            return None
        return row.peak_bytes + row.state_bytes - base.peak_bytes - base.state_bytes


def make_timing_rows(
    timings: Timings,
    reference: str,
    *,
    peaks: Mapping[str, int] = MappingProxyType({}),
    states: Mapping[str, int] = MappingProxyType({}),
) -> tuple[TimingRow, ...]:
    """One row per workload that did not fail, with ratios within rounds.

    Args:
        peaks: peak memory in bytes, by label.
        states: size of the homogenizers' state in bytes, by label.
    """
    return tuple(
        TimingRow(
            label,
            Quantiles.of([*timings.measured_seconds(label).values()]),
            Quantiles.of(timings.ratios(label, reference)),
            peaks.get(label),
            states.get(label, 0),
        )
        for label, seconds in timings.seconds.items()
        if seconds and label not in timings.failures
    )


def to_json(table: Table) -> dict[str, Any]:
    """Return the table as a dict for JSON, in seconds, ratios and bytes."""
    return {
        "title": table.title,
        "reference": table.reference,
        "rows": [
            {
                "label": row.label,
                "seconds": row.seconds.record(),
                "ratio": row.ratio.record(),
                "peak_bytes": row.peak_bytes,
                "state_bytes": row.state_bytes,
                "added_bytes": table.added_bytes(row),
            }
            for row in table.rows
        ],
        "failures": table.failures,
        "notes": list(table.notes),
    }

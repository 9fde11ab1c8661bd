"""Records of the runs of a table by method, and curves of their values over steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gradhomog.experiments.report.figures.curves import running_mean
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import by_run_and_label, row_order

Runs = dict[tuple[str, str], list[list[Record]]]
"""The records of each run in the order of steps, by (learner, label)."""


def runs_of(records: Iterable[Record], event: str) -> Runs:
    """Records of an event for the runs of the table; runs without a result are omitted."""
    records = list(records)
    results = [record for record in records if record["event"] == "result" and record["role"] == "compare"]
    order = row_order(records)  # the order of the table, which determines the colours in figures
    results.sort(key=lambda record: order.index((record["learner"], record["label"])))
    by_run = by_run_and_label(records, event)
    runs: Runs = {}
    for result in results:
        if run := by_run.get((result["run"], result["label"])):
            runs.setdefault((result["learner"], result["label"]), []).append(run)
    return runs


def curve(run: Sequence[Record], value: Callable[[Record], float], smooth: bool = True) -> dict[int, float]:
    """The value of each record by step; if `smooth`, its running mean over a tenth of the records."""
    values = [value(record) for record in run]
    if smooth:
        values = running_mean(values, max(1, round(len(values) / 10)))
    return {record["step"]: number for record, number in zip(run, values, strict=True)}

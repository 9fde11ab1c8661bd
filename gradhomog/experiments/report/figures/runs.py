"""The records of the runs of a table, by method, and curves over their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gradhomog.experiments.report.figures.curves import running_mean
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import by_run_and_label, row_order

Runs = dict[tuple[str, str], list[list[Record]]]
"""By learner and label, the records of each run, by step."""


def runs_of(records: Iterable[Record], event: str) -> Runs:
    """Records of an event for the runs of the table. A run without a result is left out."""
    records = list(records)
    results = [record for record in records if record["event"] == "result" and record["role"] == "compare"]
    order = row_order(records)  # that of the table, and with it the colours of its figures
    results.sort(key=lambda record: order.index((record["learner"], record["label"])))
    by_run = by_run_and_label(records, event)
    runs: Runs = {}
    for result in results:
        if found := by_run.get((result["run"], result["label"])):
            runs.setdefault((result["learner"], result["label"]), []).append(found)
    return runs


def curve(run: Sequence[Record], value: Callable[[Record], float], smooth: bool = True) -> dict[int, float]:
    """A value of each record by step; with `smooth` its running mean over a tenth of the records."""
    values = [value(record) for record in run]
    if smooth:
        values = running_mean(values, max(1, round(len(values) / 10)))
    return {record["step"]: number for record, number in zip(run, values, strict=True)}

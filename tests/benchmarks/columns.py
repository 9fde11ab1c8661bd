"""Comparisons with several references, further columns, or an equal share of the time for each workload."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradhomog.experiments.profiling.harness import Comparison, Quantiles, Timings, TimingTable, ratio_cell
from gradhomog.table import NOTHING


@dataclass(frozen=True)
class Column:
    """An additional column.

    Attributes:
        values: values by label of a row; the cells of rows without a value are `–`.
        text: converts a value to text; by default a median of ratios.
    """

    title: str
    values: Mapping[str, Quantiles | float]
    text: Callable[[Any], str] = ratio_cell


@dataclass(frozen=True)
class TableWithColumns(TimingTable):
    """A table with additional columns, after the ratio to the reference."""

    columns: tuple[Column, ...] = ()

    def table(self):
        found = super().table()
        place = found.header.index("95 %") + 1
        header = [*found.header[:place], *(column.title for column in self.columns), *found.header[place:]]
        lines = []
        for row, line in zip(self.rows, found.rows, strict=True):
            cells = [
                column.text(column.values[row.label]) if row.label in column.values else NOTHING
                for column in self.columns
            ]
            lines.append([*line[:place], *cells, *line[place:]])
        return replace(found, header=header, rows=lines)

    def record(self):
        content = super().record()
        columns = content.pop("columns")
        for row, entry in zip(self.rows, content["rows"], strict=True):
            entry |= {column["title"]: column["values"].get(row.label) for column in columns}
        return content


@dataclass(frozen=True)
class ComparisonWithColumns(Comparison):
    """A comparison whose table has further columns.

    Attributes:
        others: labels of further workloads that all are compared with.
        columns: returns further columns; called after the calls for memory.
        shared_budget: if False, each workload has an equal share of the budget, so a slow one has fewer rounds;
            `min_rounds` may then be 1.
    """

    others: tuple[str, ...] = ()
    columns: Callable[[Timings], Sequence[Column]] = lambda timings: ()
    shared_budget: bool = True

    def table(self, timings, rows, notes):
        ratios = (
            Column(f"to {other}", {label: timings.ratio(label, other) for label in timings.finished if label != other})
            for other in self.others
            if other in timings.finished
        )
        columns = tuple(column for column in (*ratios, *self.columns(timings)) if column.values)
        return TableWithColumns(self.title, self.reference, rows, notes, timings.failures, columns)

    def within_budget(self, label, number, timings, spent, seconds):
        if self.shared_budget:
            return super().within_budget(label, number, timings, spent, seconds)
        taken = timings.seconds[label]
        last = taken.get(number - 1)  # None if it was not called in the last round; it has stopped
        return last is not None and sum(taken.values()) + last <= seconds / len(self.workloads)

    def method_notes(self, clock, with_memory):
        notes = super().method_notes(clock, with_memory)
        share = [] if self.shared_budget else ["Each has an equal share of the time, so slow ones have fewer rounds."]
        return [*notes[:3], *share, *notes[3:]]

"""The result of a benchmark on inputs of one shape: a table with additional columns, as Markdown and as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradhomog.experiments.profiling.quantiles import Quantiles
from gradhomog.experiments.profiling.table import Table, to_json
from gradhomog.experiments.profiling.table_text import cells, ratio_cell, signed
from gradhomog.table import NOTHING

Value = Quantiles | float


@dataclass(frozen=True)
class Column:
    """A column of a benchmark's table.

    Attributes:
        values: values by label of a row; the cells of rows without a value are `–`.
        text: converts a value to text.
    """

    title: str
    values: dict[str, Value]
    text: Callable[[Any], str]


def ratios(title: str, values: dict[str, Value]) -> Column:
    """A column of medians of ratios."""
    return Column(title, values, ratio_cell)


def differences(title: str, values: dict[str, Value]) -> Column:
    """A column of medians of differences in seconds, printed in milliseconds: `+0.12 ms`."""
    return Column(title, values, lambda value: f"{signed(value.median * 1e3)} ms")


def cosines(values: dict[str, Value]) -> Column:
    """A column of cosines with six decimals."""
    return Column("cosine", values, lambda value: f"{value:.6f}")


@dataclass(frozen=True)
class Comparison:
    """The table of the workloads, with additional columns after the ratio to the reference."""

    table: Table
    columns: tuple[Column, ...] = ()

    def lines(self) -> list[list[str]]:
        """The texts of the cells: the header, and one list per row."""
        header, *rows = cells(self.table)
        lines = [[*header[:4], *(column.title for column in self.columns), *header[4:]]]
        for row in rows:
            additional = [
                column.text(column.values[row[0]]) if row[0] in column.values else NOTHING for column in self.columns
            ]
            lines.append([*row[:4], *additional, *row[4:]])
        return lines

    def markdown(self) -> str:
        """A Markdown section with title, table, notes and failures."""
        failed = [f"Failed: {label}: {message}" for label, message in self.table.failures.items()]
        notes = [f"- {note}" for note in (*self.table.notes, *failed)]
        return "\n".join([f"## {self.table.title}", "", *pipe_table(self.lines()), "", *notes])

    def record(self) -> dict[str, Any]:
        """The table as plain data for JSON; each row also has the values of the additional columns."""
        data = to_json(self.table)
        for row in data["rows"]:
            values = {column.title: column.values.get(row["label"]) for column in self.columns}
            row |= {name: value.record() if isinstance(value, Quantiles) else value for name, value in values.items()}
        return data


def pipe_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table with aligned columns.

    >>> pipe_table([["a", "time"], ["plain", "1 s"]])
    ['| a     | time |', '| ----- | ---- |', '| plain | 1 s  |']
    """
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    header, *rows = lines
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (header, *rows)]
    rule = ["-" * width for width in widths]
    return [f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:])]

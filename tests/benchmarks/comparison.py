"""The result of a benchmark on inputs of one shape: a table with further columns, as Markdown and as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradhomog.experiments.profiling.quantiles import Quantiles
from gradhomog.experiments.profiling.table import Table, to_json
from gradhomog.experiments.profiling.table_text import cells, ratio_cell, signed
from gradhomog.experiments.report.formatting import NOTHING

Value = Quantiles | float


@dataclass(frozen=True)
class Column:
    """A column of a benchmark's table.

    Attributes:
        values: by label of a row; `–` is shown for rows without one.
        text: how a value is shown.
    """

    title: str
    values: dict[str, Value]
    text: Callable[[Any], str]


def ratios(title: str, values: dict[str, Value]) -> Column:
    """Medians of ratios."""
    return Column(title, values, ratio_cell)


def differences(title: str, values: dict[str, Value]) -> Column:
    """Medians of differences in seconds, shown in milliseconds: `+0.12 ms`."""
    return Column(title, values, lambda value: f"{signed(value.median * 1e3)} ms")


def cosines(values: dict[str, Value]) -> Column:
    """Numbers with six decimals."""
    return Column("cosine", values, lambda value: f"{value:.6f}")


@dataclass(frozen=True)
class Comparison:
    """The table of the works, with columns after the ratio to the reference."""

    table: Table
    columns: tuple[Column, ...] = ()

    def lines(self) -> list[list[str]]:
        """The header, and one line of texts per row."""
        header, *rows = cells(self.table)
        shown = [[*header[:4], *(column.title for column in self.columns), *header[4:]]]
        for line in rows:
            more = [
                column.text(column.values[line[0]]) if line[0] in column.values else NOTHING for column in self.columns
            ]
            shown.append([*line[:4], *more, *line[4:]])
        return shown

    def markdown(self) -> str:
        """A section with the title, the table, the notes and the failures."""
        failed = [f"Failed: {label}: {message}" for label, message in self.table.failures.items()]
        notes = [f"- {note}" for note in (*self.table.notes, *failed)]
        return "\n".join([f"## {self.table.title}", "", *pipe_table(self.lines()), "", *notes])

    def record(self) -> dict[str, Any]:
        """Plain data: that of the table, and in each row its value of every column."""
        data = to_json(self.table)
        for row in data["rows"]:
            found = {column.title: column.values.get(row["label"]) for column in self.columns}
            row |= {name: value.record() if isinstance(value, Quantiles) else value for name, value in found.items()}
        return data


def pipe_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns are aligned in the source, too.

    >>> pipe_table([["a", "time"], ["plain", "1 s"]])
    ['| a     | time |', '| ----- | ---- |', '| plain | 1 s  |']
    """
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    header, *rows = lines
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (header, *rows)]
    rule = ["-" * width for width in widths]
    return [f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:])]

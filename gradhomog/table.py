"""Tables: cells with a text and a value, as aligned text, HTML and Markdown."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradhomog.terminal import escape_controls

LEVEL = 0.95
"""The confidence level of all intervals in tables and figures."""

NOTHING = "–"
"""The text of a cell without a value."""

Value = float | str | None
"""The value of a cell in full precision, by which columns are sorted; None, for an unknown value, is last."""


@dataclass(frozen=True)
class Cell:
    """The text and the value of a cell."""

    text: str
    value: Value = None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        header: the titles of the columns.
        rows: the cells, row by row; a text is a cell whose value is the text.
        notes: sentences below the table.
        sticky: index of the column of HTML pages that stays visible during horizontal scrolling.
        empty: the text instead of a table without rows.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    notes: Sequence[str] = ()
    sticky: int | None = None
    empty: str = "No run has finished, so there is no table."

    @property
    def cells(self) -> list[list[Cell]]:
        """The cells, row by row; control characters of texts are escaped."""
        cells = [
            [cell if isinstance(cell, Cell) else Cell(cell, None if cell == NOTHING else cell) for cell in row]
            for row in self.rows
        ]
        return [[Cell(escape_controls(cell.text), cell.value) for cell in row] for row in cells]

    @property
    def texts(self) -> list[list[str]]:
        """The header, and the texts of the cells row by row."""
        return [list(map(escape_controls, self.header)), *([cell.text for cell in row] for row in self.cells)]

    def lines(self) -> list[str]:
        """Lines with columns padded to equal width, and a rule below the header; the `±` of a column are aligned."""
        lines = aligned(self.texts)
        return [lines[0], "─" * max(map(len, lines)), *lines[1:]]

    def text(self) -> str:
        """The lines, followed by the notes."""
        lines = [*self.lines(), "", *self.notes] if self.rows else [self.empty, *self.notes]
        return escape_controls("\n".join(lines), keep="\n")

    def html(self, caption: str = "") -> str:
        """A `<table>` without styles, for pages and notebooks; `data-sort` is the value of a cell if not its text."""
        label = f"<caption>{html.escape(escape_controls(caption))}</caption>\n" if caption else ""
        head = self._html_row("th", [(title, ' scope="col"') for title in self.texts[0]])
        rows = "\n".join(
            self._html_row("td", [(cell.text, _sort_attribute(cell)) for cell in row]) for row in self.cells
        )
        return f'<table class="sortable">\n{label}<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody>\n</table>'

    def _html_row(self, tag: str, cells: Iterable[tuple[str, str]]) -> str:
        entries = []
        for index, (text, attributes) in enumerate(cells):
            mark = ' class="sticky"' if index == self.sticky else ""
            entries.append(f"<{tag}{attributes}{mark}>{html.escape(text)}</{tag}>")
        return f"<tr>{''.join(entries)}</tr>"

    def markdown(self) -> str:
        """The texts of the cells as a Markdown table."""
        header, *rows = ([text.replace("|", "\\|") for text in row] for row in self.texts)
        return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns padded to equal width, two spaces apart; the `±` of a column are aligned."""
    escaped = [[escape_controls(text) for text in row] for row in rows]  # of commands, which have no `Table`
    columns = [_pad_cells(column) for column in zip(*escaped, strict=True)]
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _sort_attribute(cell: Cell) -> str:
    """The attribute with the value, empty if it is unknown or NaN; no attribute if it is the text of the cell."""
    key = "" if cell.value is None or cell.value != cell.value else escape_controls(str(cell.value))
    return "" if key == cell.text else f' data-sort="{html.escape(key)}"'


def _pad_cells(column: Sequence[str]) -> list[str]:
    if not any("±" in cell for cell in column[1:]):
        width = max(map(len, column))
        return [cell.ljust(width) for cell in column]
    parts = [cell.partition(" ±") for cell in column]
    left = max(len(mean) for mean, bar, _ in parts if bar)
    padded = [column[0], *(mean.rjust(left) + bar + rest for mean, bar, rest in parts[1:])]
    width = max(map(len, padded))
    return [cell.ljust(width) for cell in padded]

"""Tables as plain text with aligned columns, and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

from gradhomog.terminal import escape_controls

LEVEL = 0.95
"""The confidence level of all intervals in tables and figures."""


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns padded to equal width, and a rule below the header; the `±` of a column are aligned."""
    rows = [[escape_controls(cell) for cell in row] for row in rows]
    columns = [_pad_cells(column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
    return [lines[0], "─" * max(map(len, lines)), *lines[1:]]


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table for notebooks; the first row is the header."""
    tags = ["th", *["td"] * (len(rows) - 1)]
    lines = [
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) for tag, row in zip(tags, rows, strict=True)
    ]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _pad_cells(column: Sequence[str]) -> list[str]:
    if not any("±" in cell for cell in column[1:]):
        width = max(map(len, column))
        return [cell.ljust(width) for cell in column]
    parts = [cell.partition(" ±") for cell in column]
    left = max(len(mean) for mean, bar, _ in parts if bar)
    padded = [column[0], *(mean.rjust(left) + bar + rest for mean, bar, rest in parts[1:])]
    width = max(map(len, padded))
    return [cell.ljust(width) for cell in padded]

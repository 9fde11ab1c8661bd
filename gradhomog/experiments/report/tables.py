"""Render the table of a comparison as aligned plain text with notes."""

from __future__ import annotations

from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.columns import cells, score_columns
from gradhomog.experiments.report.notes import notes
from gradhomog.text_table import align_columns


def render_table(summary: Summary) -> str:
    """The table as text, followed by notes about its numbers and about missing runs."""
    if not summary.rows:
        return "\n".join(["No run has finished, so there is no table.", *notes(summary)])
    columns = score_columns(summary)
    lines = align_columns([[column.title for column in columns], *(cells(columns, row) for row in summary.rows)])
    return "\n".join([*lines, "", *notes(summary)])

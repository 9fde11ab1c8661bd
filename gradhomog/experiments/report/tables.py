"""The table of a comparison as aligned plain text, with its notes."""

from __future__ import annotations

from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.columns import cells, score_columns
from gradhomog.experiments.report.notes import notes
from gradhomog.experiments.report.text_table import aligned


def render_table(summary: Summary) -> str:
    """The table, and below it the meaning of its numbers and the runs that are missing."""
    if not summary.rows:
        return "\n".join(["No run has finished, so there is no table.", *notes(summary)])
    columns = score_columns(summary)
    lines = aligned([[column.title for column in columns], *(cells(columns, row) for row in summary.rows)])
    return "\n".join([*lines, "", *notes(summary)])

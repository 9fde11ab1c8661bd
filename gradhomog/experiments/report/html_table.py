"""Tables of the HTML report: texts of cells with their sort keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.rows import MethodRow
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.columns import Column, Value, baseline_columns, score_columns
from gradhomog.experiments.report.formatting import NOTHING, number_text


@dataclass(frozen=True)
class Cell:
    """A cell; `sort` is its sort key as text. Cells with an empty key are sorted last."""

    text: str
    sort: str


@dataclass(frozen=True)
class Table:
    """A table; `sticky` is the index of the column that stays visible during horizontal scrolling."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sticky: int = 0


def score_table(summary: Summary) -> Table:
    """Scores of all methods, as printed in the terminal."""
    return _method_table(score_columns(summary), summary.rows)


def baseline_table(summary: Summary) -> Table:
    """All methods compared with the best baseline, which is not a row of this table."""
    return _method_table(baseline_columns(summary), [row for row in summary.rows if row.to_baseline is not None])


def candidate_table(summary: Summary) -> Table:
    """The candidates of tuned methods with the scores by which one of them was chosen."""
    several = len(summary.learners) > 1
    kind = metric(summary.metric)
    score = f"validation {kind.title}" if summary.held_out else kind.title
    header = [*(["learner"] if several else []), "candidate", score, "chosen", "method", "at step"]
    rows = [
        [
            *([text_cell(candidate.learner)] if several else []),
            text_cell(candidate.homogenizers),
            Cell(number_text(candidate.validation, summary.metric), number_key(candidate.validation)),
            text_cell("chosen" if candidate.chosen else ""),
            text_cell(candidate.label),
            text_cell(NOTHING if candidate.best_step is None else str(candidate.best_step)),
        ]
        for candidate in summary.candidates
    ]
    return Table(header, rows, sticky=int(several))


def text_cell(text: str) -> Cell:
    """A cell that is sorted by its text."""
    return Cell(text, "" if text == NOTHING else text)


def _method_table(columns: Sequence[Column], rows: Iterable[MethodRow]) -> Table:
    titles = [column.title for column in columns]
    cells = [[Cell(column.text(row), _sort_key(column.value, row)) for column in columns] for row in rows]
    return Table(titles, cells, sticky=titles.index("method"))


def _sort_key(get_value: Callable[[MethodRow], Value], row: MethodRow) -> str:
    value = get_value(row)
    return value if isinstance(value, str) else number_key(value)


def number_key(value: float | None) -> str:
    """The sort key of a number; empty for unknown numbers."""
    return "" if value is None or value != value else repr(value)

"""Tables of the HTML report: texts with the values by which a column is sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.rows import Row
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.columns import Column, Value, answer_columns, score_columns
from gradhomog.experiments.report.formatting import NOTHING, number_text


@dataclass(frozen=True)
class Cell:
    """A cell; `sort` is its sort key as text, empty for the end of the table."""

    text: str
    sort: str


@dataclass(frozen=True)
class Table:
    """A table; `sticky` is the index of the column that stays visible while the others are scrolled."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sticky: int = 0


def score_table(summary: Summary) -> Table:
    """Scores of all methods, as in the terminal."""
    return _methods(score_columns(summary), summary.rows)


def answer_table(summary: Summary) -> Table:
    """All methods compared with the best baseline, which has no row of its own."""
    return _methods(answer_columns(summary), [row for row in summary.rows if row.to_baseline is not None])


def candidate_table(summary: Summary) -> Table:
    """The candidates of tuned methods with the scores that chose among them."""
    several = len(summary.learners) > 1
    kind = metric(summary.metric)
    score = f"validation {kind.title}" if summary.held_out else kind.title
    header = [*(["learner"] if several else []), "candidate", score, "chosen", "method", "at step"]
    rows = [
        [
            *([cell(candidate.learner)] if several else []),
            cell(candidate.homogenizers),
            Cell(number_text(candidate.validation, summary.metric), _key(candidate.validation)),
            cell("chosen" if candidate.chosen else ""),
            cell(candidate.label),
            cell(NOTHING if candidate.best_step is None else str(candidate.best_step)),
        ]
        for candidate in summary.candidates
    ]
    return Table(header, rows, sticky=int(several))


def cell(text: str) -> Cell:
    """A cell that is sorted by its text."""
    return Cell(text, "" if text == NOTHING else text)


def _methods(columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    titles = [column.title for column in columns]
    cells = [[Cell(column.text(row), _of(column.value, row)) for column in columns] for row in rows]
    return Table(titles, cells, sticky=titles.index("method"))


def _of(value: Callable[[Row], Value], row: Row) -> str:
    found = value(row)
    return found if isinstance(found, str) else _key(found)


def _key(value: float | None) -> str:
    return "" if value is None or value != value else repr(value)

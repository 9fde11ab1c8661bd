"""The candidates of tuned methods with their validation scores, and which candidate was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradhomog.experiments.analysis.method_rows import MethodRow
from gradhomog.experiments.results.events import Record, numbers


@dataclass(frozen=True)
class Candidate:
    """A candidate of a tuned method; `validation` is its best validation score."""

    learner: str
    label: str
    homogenizers: str
    seed: int
    validation: float
    best_step: int | None
    chosen: bool


def candidates(results: Sequence[Record], rows: Sequence[MethodRow]) -> list[Candidate]:
    """All candidates with a result, in the order of the configuration; candidates without a row are last."""
    chosen = {(row.learner, row.label, row.chosen) for row in rows if row.chosen is not None}
    order = [(row.learner, text) for row in rows for text in row.tuned_from]
    unordered = [
        Candidate(
            record["learner"],
            record["label"],
            record["homogenizers"],
            record["seed"],
            numbers([record.get("validation")])[0],
            record.get("best_step"),
            (record["learner"], record["label"], record["homogenizers"]) in chosen,
        )
        for record in results
        if record["role"] == "candidate"
    ]
    places = {pair: place for place, pair in enumerate(order)}
    return sorted(unordered, key=lambda item: places.get((item.learner, item.homogenizers), len(order)))

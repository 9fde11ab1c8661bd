"""What scores are: their names in words, how they are written, and which of two is better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradhomog.errors import ConfigError


@dataclass(frozen=True)
class Metric:
    """A kind of score.

    Attributes:
        name: as records have it.
        words: in a sentence.
        column: over a column of a table; the words, unless it is shorter.
        percent: whether it is a share, written in percent.
        higher_is_better: of two scores.
        best: the score of a perfect method, where it is the distances to it that one compares by their ratio.
        ratios: whether the ratio of two scores, or of two such distances, means anything.
    """

    name: str
    words: str
    percent: bool = False
    higher_is_better: bool = False
    best: float | None = None
    ratios: bool = True
    column: str = ""

    @property
    def factor(self) -> float:
        return 100.0 if self.percent else 1.0

    @property
    def unit(self) -> str:
        return " %" if self.percent else ""

    @property
    def title(self) -> str:
        """Of a column of a table, with its unit."""
        return (self.column or self.words) + self.unit

    def better(self, new: float, old: float) -> bool:
        """Whether a score is better than another; one that is not a number is the worst."""
        if math.isnan(new) or math.isnan(old):
            return math.isnan(old)
        return new > old if self.higher_is_better else new < old

    def improvement(self, score: float, base: float) -> float:
        """By which part a score is better than another: of accuracies (s - b) / b, of errors (b - s) / b.

        Of a score with a best one, such as R², the errors are the distances to it. NaN where b is 0, or where ratios of
        such scores mean nothing.
        """
        if not self.ratios:
            return math.nan
        if self.best is not None:
            score, base = abs(self.best - score), abs(self.best - base)
        sign = 1 if self.higher_is_better and self.best is None else -1
        return sign * (score - base) / base if base else math.nan


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", percent=True, higher_is_better=True),
        Metric("mse", "mean squared error", column="mse"),
        Metric("nmse", "normalized mean squared error", column="nmse"),
        Metric("r2", "R²", higher_is_better=True, best=1.0),
        Metric("loss", "loss", ratios=False),
    )
}


def metric(name: str) -> Metric:
    """A metric by its name in records.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in METRICS:
        raise ConfigError(
            f"unknown metric {name!r} in a record; known: {', '.join(METRICS)}. "
            "The folder was written by another version of gradhomog."
        )
    return METRICS[name]

"""The metrics of scores: names, units, and which of two scores is better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradhomog.errors import ConfigError


@dataclass(frozen=True)
class Metric:
    """A kind of score.

    Attributes:
        name: in records.
        words: in a sentence.
        column: over a column of a table; by default the words.
        percent: whether it is a fraction that is written in percent.
        higher_is_better: whether the higher of two scores is better.
        best: the score of a perfect method, for metrics whose distances to it are compared by their ratio.
        ratios: whether the ratio of two scores, or of two such distances, has a meaning.
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
        """The header of a column, with its unit."""
        return (self.column or self.words) + self.unit

    def better(self, new: float, old: float) -> bool:
        """Whether a score is better than another; one that is not a number is the worst."""
        if math.isnan(new) or math.isnan(old):
            return math.isnan(old)
        return new > old if self.higher_is_better else new < old

    def improvement(self, score: float, base: float) -> float:
        """The relative improvement of a score s over b: (s - b) / b for accuracies, (b - s) / b for errors.

        For a score with a best one, such as R², errors are the distances to it. NaN where b is 0, or where ratios of
        such scores have no meaning.
        """
        if not self.ratios:
            return math.nan
        if self.best is not None:
            score, base = abs(self.best - score), abs(self.best - base)
        sign = 1 if self.higher_is_better and self.best is None else -1
        return sign * (score - base) / base if base else math.nan

    def detectable(self, base: float) -> float | None:
        """The difference for which the needed number of seeds is given: one percentage point, or 5 % of a score.

        None where the score is 0 or not finite, or where ratios of scores have no meaning.
        """
        if self.percent:
            return 0.01
        relative = 0.05 * abs(base)
        return relative if self.ratios and 0 < relative < math.inf else None


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

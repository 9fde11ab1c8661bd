"""The metrics of scores: names, units, and which of two scores is better."""

import math
from dataclasses import dataclass

from gradhomog.errors import ConfigError


@dataclass(frozen=True)
class Metric:
    """A metric of scores.

    Attributes:
        name: its name in records.
        words: its name in sentences.
        column: its name in the header of a column; by default `words`.
        percent: True for a fraction that is written in percent.
        higher_is_better: True if the higher of two scores is better.
        best: the score of a perfect method, for metrics whose relative improvement is that of the distance to it.
        ratios: True if the ratio of two scores, or of two such distances, is meaningful.
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

    def is_better(self, new: float, old: float) -> bool:
        """True if `new` is better than `old`; NaN is worse than any number."""
        if math.isnan(new) or math.isnan(old):
            return math.isnan(old)
        return new > old if self.higher_is_better else new < old

    def improvement(self, score: float, base: float) -> float:
        """The relative improvement of a score s on b: (s - b) / b for accuracies, (b - s) / b for errors.

        For metrics with `best`, such as R², the error is the distance to it. NaN if b is 0, or if ratios of such scores
        are not meaningful.
        """
        if self.best is not None:
            score, base = abs(self.best - score), abs(self.best - base)
        sign = 1 if self.higher_is_better and self.best is None else -1
        return sign * (score - base) / base if base else math.nan

    def detectable_difference(self, base: float) -> float | None:
        """The difference that `seeds_needed` refers to: one percentage point, or 5 % of the score `base`.

        None if the score is 0 or not finite, or if ratios of scores are not meaningful.
        """
        if self.percent:
            return 0.01
        relative = 0.05 * abs(base)
        return relative if self.ratios and 0 < relative < math.inf else None


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", percent=True, higher_is_better=True),
        Metric("f1", "F1 score", percent=True, higher_is_better=True, column="F1"),
        Metric("mse", "mean squared error", column="mse"),
        Metric("nmse", "normalized mean squared error", column="nmse"),
        Metric("r2", "R²", higher_is_better=True, best=1.0),
        Metric("loss", "loss", ratios=False),
        Metric("error", "error"),
        Metric("relative_l2", "relative L² error", column="L² error"),
        Metric("drop", "Δm", percent=True, ratios=False),
        Metric("rank", "mean rank", ratios=False),
    )
}


def metric(name: str) -> Metric:
    """Return the metric with this name in records.

    Raises:
        ConfigError: no metric has this name.
    """
    if name not in METRICS:
        raise ConfigError(
            f"unknown metric {name!r} in a record; known: {', '.join(METRICS)}. "
            "The folder was written by another version of gradhomog."
        )
    return METRICS[name]

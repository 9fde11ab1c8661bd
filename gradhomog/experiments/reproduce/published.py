"""The accuracies printed in the RotoGBML paper, by table, row and column."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class PublishedScore:
    """An accuracy in percent, and half of its 95 % interval over test tasks; None if the paper prints no interval."""

    mean: float
    half_width: float | None = None


def published_score(table: str, row: str, column: str) -> PublishedScore | None:
    """Return the accuracy of a row and column of a table; None if the paper has no such number.

    >>> published_score("weak", "MAML", "cub 1-shot")
    PublishedScore(mean=54.73, half_width=0.97)
    """
    found = _tables().get(table, {}).get(row, {}).get(column)
    return None if found is None else PublishedScore(*found)


@functools.cache
def _tables() -> dict[str, dict[str, dict[str, list[float]]]]:
    text = resources.files("gradhomog.experiments.reproduce").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

"""The errors printed in the papers, by column and row."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class PublishedError:
    """A mean error, and the standard deviation of the runs; None if the source prints none."""

    mean: float
    deviation: float | None = None


def published_error(column: str, row: str) -> PublishedError | None:
    """Return the error of a row in a column; None if no source prints it.

    >>> published_error("helmholtz", "DCGD")
    PublishedError(mean=0.0029, deviation=0.0005)
    """
    found = _tables().get(column, {}).get(row)
    return None if found is None else PublishedError(*found)


@functools.cache
def _tables() -> dict[str, dict[str, list[float]]]:
    text = resources.files(__package__).joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

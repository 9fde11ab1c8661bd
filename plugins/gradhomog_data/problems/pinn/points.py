"""Random points of a box and of its sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]


def uniform(random: np.random.Generator, count: int, lower: Sequence[float], upper: Sequence[float]) -> Points:
    """Return independent uniform points `[count, inputs]`; on a side of the box, a coordinate has lower = upper."""
    low, high = np.asarray(lower), np.asarray(upper)
    return np.asarray(low + (high - low) * random.random((count, len(low))))


def latin_hypercube(random: np.random.Generator, count: int, lower: Sequence[float], upper: Sequence[float]) -> Points:
    """Return points `[count, inputs]` of which each of `count` equal intervals of each coordinate has exactly one.

    Source: McKay, Beckman and Conover 1979, Technometrics 21.

    >>> points = latin_hypercube(np.random.default_rng(0), 4, [0, 0], [4, 8])
    >>> sorted(points[:, 0].astype(int).tolist()), sorted((points[:, 1] / 2).astype(int).tolist())
    ([0, 1, 2, 3], [0, 1, 2, 3])
    """
    low, high = np.asarray(lower), np.asarray(upper)
    cells = np.stack([random.permutation(count) for _ in low], axis=1)
    return np.asarray(low + (high - low) * (cells + random.random((count, len(low)))) / count)


def make_grid(lower: Sequence[float], upper: Sequence[float], counts: Sequence[int], *, cells: bool = False) -> Points:
    """Return the points `[product of counts, inputs]` of a grid that includes the sides; the last input varies fastest.

    With `cells`, the centres of cells between such points instead.
    """
    axes = [np.linspace(low, high, count) for low, high, count in zip(lower, upper, counts, strict=True)]
    if cells:
        axes = [(axis[1:] + axis[:-1]) / 2 for axis in axes]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))

"""Optimization trajectories over a two-dimensional loss landscape, stored as `trajectory.npz` for its figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.results import artifacts
from gradhomog.experiments.results.events import Record
from gradhomog.files import open_npz

FILE = "trajectory.npz"

MAX_BYTES = 2**26
"""Limit on the bytes that are read from a file; `write` writes less than 2 MB."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Trajectories of one method from several starting points, with the loss surface and the Pareto front.

    Attributes:
        path: `[points, starts, 2]`; the first point is the start.
        axis: `[n]`, coordinates of the grid, the same for both dimensions.
        surface: `[n, n]`, mean of the losses on the grid; rows are the second dimension.
        front: `[count, 2]`, Pareto optimal points.
    """

    path: Array
    axis: Array
    surface: Array
    front: Array

    @classmethod
    def read(cls, folder: Path) -> Trajectory | None:
        """Return the content of the file; None if there is none: only the problem `landscape` writes it."""
        if not (folder / FILE).exists():
            return None
        with open_npz(folder / FILE, max_bytes=MAX_BYTES) as stored:
            return cls(*(stored.read(name) for name in ("path", "axis", "surface", "front")))


def collect(folder: Path, records: Iterable[Record]) -> dict[tuple[str, str], Trajectory]:
    """Return the trajectory of each method by learner and label, in the order of the table."""
    return artifacts.collect_by_method(folder, records, FILE, Trajectory.read)

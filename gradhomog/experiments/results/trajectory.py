"""The path of a point over a landscape of losses: what its figure needs, kept as `trajectory.npz`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.data.npz import open_npz
from gradhomog.experiments.results import artifacts
from gradhomog.experiments.results.atomic import replacing
from gradhomog.experiments.results.events import Record

FILE = "trajectory.npz"

MAX_BYTES = 2**26
"""Bound on what is read of a file: what `write` writes has less than 2 MB."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Paths of one method from several starts, and what they lead over.

    Attributes:
        path: `[points, starts, 2]`, the first point being the start.
        axis: coordinates of the grid, `[n]`, the same for both dimensions.
        surface: mean of the losses on the grid, `[n, n]`; rows are the second dimension.
        front: the Pareto optimal points, `[count, 2]`.
    """

    path: Array
    axis: Array
    surface: Array
    front: Array

    def write(self, folder: Path) -> None:
        """Replace the file of a run's folder in one step."""
        arrays: dict[str, Any] = dict(vars(self))
        with replacing(folder / FILE) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def read(cls, folder: Path) -> Trajectory | None:
        """What `write` wrote; None if there is nothing, as of any problem but the landscape."""
        if not (folder / FILE).exists():
            return None
        with open_npz(folder / FILE, max_bytes=MAX_BYTES) as stored:
            return cls(*(stored.read(name) for name in ("path", "axis", "surface", "front")))


def collect(folder: Path, records: Iterable[Record]) -> dict[tuple[str, str], Trajectory]:
    """By learner and label, in the table's order, the trajectory of each method."""
    return artifacts.of_methods(folder, records, FILE, Trajectory.read)

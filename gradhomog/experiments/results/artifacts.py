"""Files in run folders from which figures are drawn: saliency maps of test images, and optimization trajectories."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import checksums
from gradhomog.experiments.results.atomic_files import atomic_write
from gradhomog.experiments.results.events import Record
from gradhomog.files import NpzFile, open_npz

Kind = TypeVar("Kind", "SaliencyMaps", "Trajectory")


def collect(folder: Path, records: Iterable[Record], kind: type[Kind]) -> dict[tuple[str, str], Kind]:
    """Return the artifact of each method, by learner and label, in the order of the table, of the first seed with one.

    A file that cannot be read, or is not that of the run, is reported on stderr and skipped: it changes no result.
    """
    artifacts: dict[tuple[str, str], Kind] = {}
    for record in records:
        if record["event"] != "result" or record["role"] != "compare":
            continue
        path = folder / "runs" / record["run"] / kind.FILE
        try:
            if kind.FILE in record["files"]:
                if error := next(checksums.check_files(path.parent, {kind.FILE: record["files"][kind.FILE]})):
                    raise ConfigError(error)
                artifacts.setdefault((record["learner"], record["label"]), read(path, kind))
        except Exception as error:  # a damaged archive raises various errors of zipfile, zlib and NumPy
            print(f"{path}: skipped, it cannot be read: {error}", file=sys.stderr)
    return artifacts


def read(path: Path, kind: type[Kind]) -> Kind:
    """Return the content of a file, of which at most `MAX_BYTES` are read."""
    with open_npz(path, max_bytes=kind.MAX_BYTES) as stored:
        return kind.from_arrays(stored)


Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SaliencyMaps:
    """A few test query images, the same for all runs, with the probabilities, saliency and maps of one run's network.

    Attributes:
        images: `[n, channels, height, width]` in [-1, 1].
        domains: domain names of the images' tasks.
        probabilities: `[n]`, of the true class, by the adapted network.
        saliency: derivative of the true class's output w.r.t. the image, averaged over noise, with the images' shape;
            None if the learner's outputs are not differentiable w.r.t. the inputs.
        maps: `[n, rows, columns]` by homogenizer and map name, see `Homogenizer.maps`.
    """

    FILE: ClassVar = "saliency_maps.npz"
    MAX_BYTES: ClassVar = 2**28  # eight color images of 1024 pixels with their maps have 100 MB

    images: Array
    domains: tuple[str, ...]
    probabilities: Array
    saliency: Array | None = None
    maps: dict[str, Array] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the file into a run's folder, atomically."""
        names = list(self.maps)
        arrays: dict[str, Any] = {f"map{index}": self.maps[name] for index, name in enumerate(names)}
        if self.saliency is not None:
            arrays["saliency"] = self.saliency
        with atomic_write(folder / self.FILE) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file, images=self.images, domains=np.array(self.domains, dtype=np.str_),
                probabilities=self.probabilities, map_names=np.array(names, dtype=np.str_), **arrays,
            )  # fmt: skip

    @classmethod
    def from_arrays(cls, stored: NpzFile) -> Self:
        return cls(
            stored.read("images"),
            tuple(map(str, stored.read("domains"))),
            stored.read("probabilities"),
            stored.read("saliency") if "saliency" in stored.names else None,
            {str(name): stored.read(f"map{index}") for index, name in enumerate(stored.read("map_names"))},
        )


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Trajectories of one method from several starting points, with the loss surface and the Pareto front.

    Attributes:
        path: `[points, starts, 2]`; the first point is the start.
        axis: `[n]`, coordinates of the grid, the same for both dimensions.
        surface: `[n, n]`, mean of the losses on the grid; rows are the second dimension.
        front: `[count, 2]`, Pareto optimal points.
    """

    FILE: ClassVar = "trajectory.npz"
    MAX_BYTES: ClassVar = 2**26  # a problem writes less than 2 MB

    path: NDArray[np.float64]
    axis: NDArray[np.float64]
    surface: NDArray[np.float64]
    front: NDArray[np.float64]

    @classmethod
    def from_arrays(cls, stored: NpzFile) -> Self:
        return cls(*(stored.read(name) for name in ("path", "axis", "surface", "front")))

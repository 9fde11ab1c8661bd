"""Saliency maps and homogenizer maps of a few test images, stored as `saliency_maps.npz`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.results import artifacts
from gradhomog.experiments.results.atomic_files import atomic_write
from gradhomog.experiments.results.events import Record
from gradhomog.files import open_npz

FILE = "saliency_maps.npz"

MAX_BYTES = 2**28
"""Limit on the bytes that are read from a file: eight color images of 1024 pixels with their maps have 100 MB."""

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
        with atomic_write(folder / FILE) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file, images=self.images, domains=np.array(self.domains, dtype=np.str_),
                probabilities=self.probabilities, map_names=np.array(names, dtype=np.str_), **arrays,
            )  # fmt: skip

    @classmethod
    def read(cls, folder: Path) -> SaliencyMaps | None:
        """Return the content of the file; None if there is none."""
        if not (folder / FILE).exists():
            return None
        with open_npz(folder / FILE, max_bytes=MAX_BYTES) as stored:
            return cls(
                stored.read("images"),
                tuple(map(str, stored.read("domains"))),
                stored.read("probabilities"),
                stored.read("saliency") if "saliency" in stored.names else None,
                {str(name): stored.read(f"map{index}") for index, name in enumerate(stored.read("map_names"))},
            )


def collect(folder: Path, records: Iterable[Record]) -> dict[tuple[str, str], SaliencyMaps]:
    """Return the maps of each method by learner and label, in the order of the table, of the first seed with maps."""
    return artifacts.collect_by_method(folder, records, FILE, SaliencyMaps.read)

"""What a trained network looks at: a few test images with saliency and a homogenizer's maps, kept as `looks.npz`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.data.npz import open_npz
from gradhomog.experiments.results import artifacts
from gradhomog.experiments.results.atomic import replacing
from gradhomog.experiments.results.events import Record

FILE = "looks.npz"

MAX_BYTES = 2**28
"""Bound on what is read of a file: a few images with their maps; eight of 1024 pixels in colour have 100 MB."""

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Looks:
    """A few query images of the test, the same for every run, and what one run's network makes of them.

    Attributes:
        images: `[n, channels, height, width]` in [-1, 1].
        domains: where each comes from.
        probabilities: `[n]`, that the adapted network gives to the true class.
        saliency: derivative of the true class's output by the image, averaged over noise, of the images' shape; None
            where the learner's outputs cannot be differentiated by their inputs.
        maps: by homogenizer and place, `[n, rows, columns]`: see `Homogenizer.maps`.
        attached: whether a homogenizer changes what the encoder computes while training.
    """

    images: Array
    domains: tuple[str, ...]
    probabilities: Array
    saliency: Array | None = None
    maps: dict[str, Array] = field(default_factory=dict)
    attached: bool = False

    def write(self, folder: Path) -> None:
        """Replace the file of a run's folder in one step."""
        names = list(self.maps)
        arrays: dict[str, Any] = {f"map{index}": self.maps[name] for index, name in enumerate(names)}
        if self.saliency is not None:
            arrays["saliency"] = self.saliency
        with replacing(folder / FILE) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file, images=self.images, domains=np.array(self.domains, dtype=np.str_), attached=self.attached,
                probabilities=self.probabilities, map_names=np.array(names, dtype=np.str_), **arrays,
            )  # fmt: skip

    @classmethod
    def read(cls, folder: Path) -> Looks | None:
        """What `write` wrote; None if there is nothing, as in folders of older versions."""
        if not (folder / FILE).exists():
            return None
        with open_npz(folder / FILE, max_bytes=MAX_BYTES) as stored:
            return cls(
                stored.read("images"),
                tuple(map(str, stored.read("domains"))),
                stored.read("probabilities"),
                stored.read("saliency") if "saliency" in stored.names else None,
                {str(name): stored.read(f"map{index}") for index, name in enumerate(stored.read("map_names"))},
                bool(stored.read("attached")),
            )


def collect(folder: Path, records: Iterable[Record]) -> dict[tuple[str, str], Looks]:
    """By learner and label, in the table's order, the looks of the first seed that has some."""
    return artifacts.of_methods(folder, records, FILE, Looks.read)

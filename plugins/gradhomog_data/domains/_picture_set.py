"""Pictures of a data set, listed by class before any is decoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog import DataError
from gradhomog_data.domains._decode import decode
from gradhomog_data.domains._pictures import read_pictures
from gradhomog_data.domains.class_images import ClassImages


def identify_files(paths: Sequence[str]) -> Iterable[str]:
    """Yield path, size in bytes and time of change of each file: the key of decoded pictures."""
    here = os.getcwd()
    for path in paths:
        try:
            status = Path(path).stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error
        yield f"{os.path.join(here, path)}\t{status.st_size}\t{status.st_mtime_ns}"


@dataclass(frozen=True)
class PictureSet:
    """Pictures by class.

    Attributes:
        path: file or folder of the data set, for messages.
        name: name of the domain.
        groups: the pictures of each class, in the form that `read` accepts; by default, paths.
        splits: the official split of each class, if there is one.
        read: function of pictures and a size in pixels that returns `[n, size, size, 3]`.
        identify: function that yields one text per picture; equal texts mean equal pictures.
    """

    path: Path
    name: str
    groups: Mapping[str, Sequence[Any]]
    splits: Mapping[str, str] | None = None
    read: Callable[[Sequence[Any], int], NDArray[np.uint8]] = read_pictures
    identify: Callable[[Sequence[Any]], Iterable[str]] = identify_files

    def open(self, size: int, max_bytes: int) -> ClassImages:
        """Decode the pictures, or map those that were decoded before, grouped by class."""
        names = sorted(self.groups)
        items = [item for name in names for item in self.groups[name]]
        images, sha256 = decode(self.path, items, size, max_bytes, read=self.read, identify=self.identify)
        return ClassImages(
            self.name,
            images,
            np.repeat(np.arange(len(names)), [len(self.groups[name]) for name in names]),
            names,
            class_split=[self.splits[name] for name in names] if self.splits is not None else None,
            source=str(self.path),
            sha256=sha256,
        )

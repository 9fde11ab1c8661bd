"""Images of a benchmark by class, as paths, with the published split."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradhomog import DataError
from gradhomog_data.benchmarks.catalogue import Published, split_of
from gradhomog_data.domains._pictures import EXTENSIONS

SPLITS = ("base", "val", "novel")
"""Names of training, validation and test classes in published file lists."""


@dataclass(frozen=True)
class Listing:
    """Images of a benchmark.

    Attributes:
        folder: the folder that paths are relative to.
        classes: paths of the images of each class, with `/`, sorted; classes in the order of their labels.
        splits: `"base"`, `"val"` or `"novel"` for each class.
    """

    folder: Path
    classes: Mapping[str, Sequence[str]]
    splits: Mapping[str, str]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of classes and images of each split."""
        return {
            split: {
                "classes": sum(own == split for own in self.splits.values()),
                "images": sum(len(images) for name, images in self.classes.items() if self.splits[name] == split),
            }
            for split in SPLITS
        }

    def digest(self) -> str:
        """Return the SHA-256 of all splits, classes and relative paths."""
        digest = hashlib.sha256()
        for name, images in self.classes.items():
            for image in images:
                digest.update(f"{self.splits[name]}\t{name}\t{image}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()


def by_rule(benchmark: Published, folder: Path, classes: Mapping[str, Sequence[str]]) -> Listing:
    """Return the listing of classes, after checking their number, with the split rule of the benchmark.

    Raises:
        DataError: the number of classes differs from the published one, which would move classes to other splits; or
            a class has no image.
    """
    if len(classes) != benchmark.classes:
        raise DataError(
            f"{folder}: {benchmark.title} has {benchmark.classes} classes; found {len(classes)}. "
            "The download is incomplete, or the folder has other content. Download it again."
        )
    if empty := [name for name, images in classes.items() if not images]:
        raise DataError(
            f"{folder}: class {empty[0]!r} has no images ({len(empty)} of {len(classes)} classes are empty). "
            "Download it again."
        )
    splits = {name: split_of(benchmark.rule, index) for index, name in enumerate(classes)}
    return Listing(folder, classes, splits)


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones.

    Raises:
        DataError: the folder does not exist.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror or error}).") from error


def pictures(folder: Path) -> list[str]:
    """Return the names of the pictures of a folder, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
    return sorted(name for name in names if name.lower().endswith(EXTENSIONS))

"""Images of a benchmark by class, as paths, with the published split."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


PLACES_IMAGES = 200
"""Images of each class of Places, the first ones by name, as in the lists of Tseng et al. 2020."""

PLANTAE_IMAGES = 600
"""Largest number of images of a species of Plantae, as in the lists of Tseng et al. 2020."""

SEED = 0
"""Seed of the choice of images of Plantae."""


def list_class_folders(benchmark: Published, folder: Path) -> Listing:
    """List `<class>/*.jpg`, with classes in the order of their names."""
    return by_rule(benchmark, folder, {name: _images(folder, name) for name in subfolders(folder)})


def list_places(benchmark: Published, folder: Path) -> Listing:
    """List the first 200 images of each class."""
    return by_rule(benchmark, folder, {name: _images(folder, name)[:PLACES_IMAGES] for name in subfolders(folder)})


def list_plantae(benchmark: Published, folder: Path) -> Listing:
    """List the most frequent species, at most 600 images of each, drawn with a seed.

    Deviations from the lists of Tseng et al. 2020:
    1. Species with equal numbers of images are in the order of their names; there, in the order of the file system.
    2. Images are drawn in the order of the SHA-256 of seed, species and file; there, without a seed.
    """
    species = {name: _images(folder, name) for name in subfolders(folder)}
    frequent = sorted(species, key=lambda name: (len(species[name]), name))[-benchmark.classes :]
    chosen = {}
    for name in frequent:
        drawn = sorted(
            species[name], key=lambda image: hashlib.sha256(f"{SEED}:{image}".encode(errors="surrogatepass")).digest()
        )
        chosen[name] = sorted(drawn[:PLANTAE_IMAGES])
    return by_rule(benchmark, folder, chosen)


def list_split_folders(benchmark: Published, folder: Path) -> Listing:
    """List `{train,val,test}/<class>/*.jpg`; the folders are the published split.

    Raises:
        DataError: a split has another number of classes than the published one, or two splits share a class.
    """
    classes: dict[str, list[str]] = {}
    splits: dict[str, str] = {}
    for split, directory in zip(SPLITS, ("train", "val", "test"), strict=True):
        names = subfolders(folder / directory)
        if len(names) != benchmark.splits[split]:
            raise DataError(
                f"{folder / directory}: {benchmark.title} has {benchmark.splits[split]} classes in this split; found "
                f"{len(names)}. The download is incomplete, or the folder has other content. Download it again."
            )
        if shared := sorted(classes.keys() & set(names)):
            raise DataError(f"{folder / directory}: class {shared[0]!r} is also in another split. Remove one of them.")
        classes |= {name: _images(folder, f"{directory}/{name}") for name in names}
        splits |= dict.fromkeys(names, split)
    if empty := [name for name, images in classes.items() if not images]:
        raise DataError(f"{folder}: class {empty[0]!r} has no images. Download it again.")
    return Listing(folder, classes, splits)


def _images(folder: Path, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in pictures(folder / directory)]


MANIFEST = "manifest.json"
"""File beside the lists, with the split rule, the counts and the SHA-256 of each list."""


def list_files(benchmark: Published, listing: Listing, folder: Path) -> tuple[dict[str, Any], dict[str, bytes | None]]:
    """Return the manifest and the files of `folder`: one list per split that has classes, and the manifest.

    A list has the format of Chen et al. 2019; it is None for a split without classes. The lists depend on the names of
    folders and files and on the place of the pictures relative to `folder`, not on the machine. Differences from the
    lists of published code: paths are relative to the list instead of absolute, and images are in the order of their
    names instead of a random order.
    """
    # The real path: `..` in a path through a symbolic link starts at its target.
    prefix = Path(os.path.relpath(os.path.abspath(listing.folder), os.path.realpath(folder))).as_posix()
    names = list(listing.classes)
    texts: dict[str, bytes | None] = {}
    for split in SPLITS:
        images = [
            (f"{prefix}/{image}", label)
            for label, name in enumerate(names)
            if listing.splits[name] == split
            for image in listing.classes[name]
        ]
        content = {
            "label_names": names,
            "image_names": [image for image, _ in images],
            "image_labels": [label for _, label in images],
        }
        texts[f"{split}.json"] = (json.dumps(content) + "\n").encode() if images else None
    counts = listing.counts()
    manifest = {
        "benchmark": benchmark.name,
        "rule": benchmark.split_rule,
        "order": benchmark.order,
        "seed": SEED if benchmark.name == "plantae" else None,
        "classes": len(names),
        "images": sum(count["images"] for count in counts.values()),
        "splits": counts,
        "sha256": {name: hashlib.sha256(text).hexdigest() for name, text in texts.items() if text is not None},
    }
    return manifest, texts | {MANIFEST: (json.dumps(manifest, indent=2) + "\n").encode()}

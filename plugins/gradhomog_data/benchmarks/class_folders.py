"""List benchmarks that are distributed as one folder of pictures per class."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gradhomog import DataError
from gradhomog_data.benchmarks.catalogue import Published
from gradhomog_data.benchmarks.listing import SPLITS, Listing, by_rule, pictures, subfolders

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

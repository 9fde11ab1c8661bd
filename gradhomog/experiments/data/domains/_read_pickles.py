"""Read images from the pickles of miniImageNet: `mini-imagenet-cache-train.pkl`, `-val.pkl` and `-test.pkl`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.errors import DataError
from gradhomog.experiments.data.domains._cache import load_or_make
from gradhomog.experiments.data.domains._limits import ADVICE, check_pixels
from gradhomog.experiments.data.domains._picture_set import PictureSet, identify_files
from gradhomog.experiments.data.domains._pictures import square_resize
from gradhomog.experiments.data.read_pickle import open_pickle

FILES = {f"mini-imagenet-cache-{split}.pkl": split for split in ("train", "val", "test")}
"""File names of the splits, and the split of each."""

KEYS = ("image_data", "class_dict")


def list_pickles(folder: Path, per_class: int | None, max_bytes: int) -> PictureSet:
    """List the images of a folder with at least one of the three pickles; no code of a pickle is executed.

    A pickle is `{"image_data": uint8 [n, height, width, 3], "class_dict": {class: [index, ...]}}`. The images are read
    when they are resized; the classes are cached. At most the first `per_class` images of a class are read.

    Raises:
        DataError: a file is damaged or has other content, two splits share a class, or the images of all files take
            more than `max_bytes`.
    """
    files = [folder / name for name in FILES if (folder / name).is_file()]
    groups: dict[str, list[tuple[int, int]]] = {}
    splits: dict[str, str] = {}
    for number, file in enumerate(files):
        classes = _read_classes(file, max_bytes)
        if shared := groups.keys() & classes.keys():
            name = min(shared)
            raise DataError(f"{file}: splits must not share a class; {name!r} is also in the split {splits[name]!r}.")
        groups |= {name: [(number, row) for row in rows[:per_class]] for name, rows in classes.items()}
        splits |= dict.fromkeys(classes, FILES[file.name])
    images: dict[int, NDArray[np.uint8]] = {}

    def read(items: Sequence[tuple[int, int]], size: int) -> NDArray[np.uint8]:
        for number in sorted({number for number, _ in items} - images.keys()):
            left = max_bytes - sum(array.nbytes for array in images.values())
            with open_pickle(files[number], KEYS, left, ADVICE) as stored:
                images[number] = stored.read("image_data")
        return np.concatenate([square_resize(images[number][[row]], size) for number, row in items])

    def identify(items: Sequence[tuple[int, int]]) -> Iterable[str]:
        yield from identify_files([str(file) for file in files])
        yield from (f"{number}\t{row}" for number, row in items)

    return PictureSet(folder, folder.resolve().name, groups, splits, read, identify)


def _read_classes(file: Path, max_bytes: int) -> dict[str, list[int]]:
    """Return the rows of each class, from the cache if the file has not changed."""

    def read() -> dict[str, NDArray[Any]]:
        with open_pickle(file, KEYS, max_bytes, ADVICE) as stored:
            images = stored.header("image_data") if "image_data" in stored.names else None
            if (
                images is None
                or images.dtype != np.uint8
                or len(images.shape) != 4
                or images.shape[3] != 3
                or not images.nbytes
            ):
                raise DataError(f"{file}: `image_data` must be a uint8 array [n, height, width, 3]; got {images}.")
            check_pixels(file, *images.shape[1:3])
            rows = {name: stored.read(name) for name in stored.names if name != "image_data"}
        _check_rows(file, rows, images.shape[0])
        return rows

    found = load_or_make("classes", {"version": 1, "file": [*identify_files([str(file)])]}, read)
    return {name.partition("/")[2]: rows.tolist() for name, rows in found.items()}


def _check_rows(file: Path, classes: dict[str, NDArray[Any]], count: int) -> None:
    if not classes or "class_dict" in classes:
        raise DataError(f"{file}: `class_dict` must be a dictionary of class names and lists of rows.")
    for name, rows in classes.items():
        if rows.dtype.kind not in "iu" or rows.ndim != 1 or not rows.size:
            raise DataError(
                f"{file}: {name!r} must be a list of integers, at least one; got {rows.dtype} {rows.shape}."
            )
        if rows.min() < 0 or rows.max() >= count:
            wrong = rows.min() if rows.min() < 0 else rows.max()
            raise DataError(f"{file}: {name!r} must hold rows in 0..{count - 1}; got {wrong}.")
    counts = np.bincount(np.concatenate([rows.astype(np.int64) for rows in classes.values()]))
    if counts.max() > 1:
        raise DataError(f"{file}: `class_dict` lists image {int(counts.argmax())} more than once.")

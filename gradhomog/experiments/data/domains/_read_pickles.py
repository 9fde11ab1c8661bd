"""Read images from the pickles of miniImageNet: `mini-imagenet-cache-train.pkl`, `-val.pkl` and `-test.pkl`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.errors import DataError
from gradhomog.experiments.data.domains._limits import check_pixels
from gradhomog.experiments.data.domains._picture_set import PictureSet, identify_files
from gradhomog.experiments.data.domains._pictures import square_resize
from gradhomog.experiments.data.pickled_arrays import PickledArray
from gradhomog.experiments.data.read_pickle import read_pickle

FILES = {f"mini-imagenet-cache-{split}.pkl": split for split in ("train", "val", "test")}
"""File names of the splits, and the split of each."""


def list_pickles(folder: Path, per_class: int | None, max_bytes: int) -> PictureSet:
    """List the images of a folder with at least one of the three pickles; no code of a pickle is executed.

    A pickle is `{"image_data": uint8 [n, height, width, 3], "class_dict": {class: [index, ...]}}`. The images stay in
    the file until they are resized. At most the first `per_class` images of a class are read.

    Raises:
        DataError: a file is damaged or has other content, or two splits share a class.
    """
    files = [folder / name for name in FILES if (folder / name).is_file()]
    groups: dict[str, list[tuple[int, int]]] = {}
    splits: dict[str, str] = {}
    arrays: list[NDArray[np.uint8]] = []
    for number, file in enumerate(files):
        images, classes = _read_split(file, max_bytes)
        if shared := groups.keys() & classes.keys():
            name = min(shared)
            raise DataError(f"{file}: splits must not share a class; {name!r} is also in the split {splits[name]!r}.")
        groups |= {name: [(number, row) for row in rows[:per_class]] for name, rows in classes.items()}
        splits |= dict.fromkeys(classes, FILES[file.name])
        arrays.append(images)

    def read(items: Sequence[tuple[int, int]], size: int) -> NDArray[np.uint8]:
        return np.concatenate([square_resize(arrays[number][[row]], size) for number, row in items])

    def identify(items: Sequence[tuple[int, int]]) -> Iterable[str]:
        yield from identify_files([str(file) for file in files])
        yield from (f"{number}\t{row}" for number, row in items)

    return PictureSet(folder, folder.resolve().name, groups, splits, read, identify)


def _read_split(file: Path, max_bytes: int) -> tuple[NDArray[np.uint8], dict[str, list[int]]]:
    """Return the images of a file, and the rows of each class."""
    content = read_pickle(file, max_bytes)
    keys = list(content) if isinstance(content, dict) else []
    if "image_data" not in keys or "class_dict" not in keys:
        found = f"the keys {', '.join(map(repr, keys[:8]))}" if keys else type(content).__name__
        raise DataError(f"{file}: must be a dictionary with `image_data` and `class_dict`; found {found}.")
    array, classes = content["image_data"], content["class_dict"]
    images = array.values if isinstance(array, PickledArray) else None
    if images is None or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or not images.size:
        found = type(array).__name__ if images is None else f"{images.dtype} {images.shape}"
        raise DataError(f"{file}: `image_data` must be a uint8 array [n, height, width, 3]; got {found}.")
    check_pixels(file, *images.shape[1:3])
    if not isinstance(classes, dict) or not classes:
        raise DataError(f"{file}: `class_dict` must be a dictionary of class names and lists of rows.")
    groups = {str(name): _rows(file, str(name), rows, len(images)) for name, rows in classes.items()}
    if len(groups) < len(classes):
        raise DataError(f"{file}: `class_dict` has two keys of the same text. Classes need different names.")
    counts = np.bincount(np.concatenate([np.array(rows) for rows in groups.values()]), minlength=len(images))
    if counts.max() > 1:
        raise DataError(f"{file}: `class_dict` lists image {int(counts.argmax())} more than once.")
    return images, groups


def _rows(file: Path, name: str, rows: Any, count: int) -> list[int]:
    values = rows.values.tolist() if isinstance(rows, PickledArray) and rows.values is not None else rows
    if not isinstance(values, list) or not values or not all(type(row) is int for row in values):
        raise DataError(f"{file}: `class_dict` must hold lists of integers, at least one; class {name!r} has others.")
    if min(values) < 0 or max(values) >= count:
        wrong = min(values) if min(values) < 0 else max(values)
        raise DataError(f"{file}: `class_dict` must hold rows in 0..{count - 1}; class {name!r} has {wrong}.")
    return values

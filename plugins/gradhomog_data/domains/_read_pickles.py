"""Read images from the pickles of miniImageNet: `mini-imagenet-cache-train.pkl`, `-val.pkl` and `-test.pkl`."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog import DataError
from gradhomog_data._pickle import open_pickle
from gradhomog_data.domains._cache import load_or_make
from gradhomog_data.domains._picture_set import Read, identify_files
from gradhomog_data.domains._pictures import ADVICE, check_pixels, square_resize

KEYS = ("image_data", "class_dict")


Item = tuple[str, int]
"""A picture: the path of a pickle, and the row of its array."""


def read_pickle(file: Path, per_class: int | None, max_bytes: int) -> dict[str, list[Item]]:
    """Return the images of each class of a pickle, from the cache if the file has not changed; executes no code of it.

    A pickle is `{"image_data": uint8 [n, height, width, 3], "class_dict": {class: [index, ...]}}`. The images are read
    when they are resized. At most the first `per_class` images of a class are read.

    Raises:
        DataError: the file is damaged or has other content, or its images take more than `max_bytes`.
    """

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
    return {
        name.partition("/")[2]: [(str(file), row) for row in rows.tolist()[:per_class]] for name, rows in found.items()
    }


def picture_readers(pickles: Sequence[Path], max_bytes: int) -> tuple[Read, Callable[[Sequence[Item]], Iterable[str]]]:
    """Return `read` and `identify` of the images; those of all files may take `max_bytes`."""
    numbers = {str(file): number for number, file in enumerate(pickles)}
    images: dict[str, NDArray[np.uint8]] = {}

    def read(item: Item, size: int) -> NDArray[np.uint8]:
        file, row = item
        if file not in images:
            left = max_bytes - sum(array.nbytes for array in images.values())
            with open_pickle(Path(file), KEYS, left, ADVICE) as stored:
                images[file] = stored.read("image_data")
        picture: NDArray[np.uint8] = square_resize(images[file][[row]], size)[0]
        return picture

    def identify(items: Sequence[Item]) -> Iterable[str]:
        yield from identify_files([*numbers])
        yield from (f"{numbers[file]}\t{row}" for file, row in items)

    return read, identify


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

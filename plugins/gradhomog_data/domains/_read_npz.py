"""Read images from one `.npz` file."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gradhomog import DataError, files
from gradhomog_data.domains._pictures import ADVICE, check_memory, check_pixels, square_resize
from gradhomog_data.domains.class_images import ClassImages, check_classes, check_images, check_labels

REQUIRED = ("images", "labels", "class_names")


def read_npz(path: Path, size: int, max_bytes: int) -> ClassImages:
    """Read `images` uint8 `[n, h, w]` or `[n, h, w, 1 or 3]`, `labels` `[n]`, `class_names`, optional `class_split`.

    Types and shapes are checked before anything is decompressed, labels and names before the images are decompressed.

    Raises:
        DataError: the file cannot be used; the message contains the path and the reason. Pickled objects are never
            loaded.
    """
    with files.open_npz(path, max_bytes=max_bytes, advice=ADVICE) as stored:
        shape = _check_headers(path, stored)
        check_memory(path, (shape[0], size, size, shape[3]), max_bytes)
        labels, names, split = read_classes(path, stored)
        pixels = square_resize(stored.read("images").reshape(shape), size)
    return ClassImages(path.stem, pixels, labels, names, class_split=split, source=str(path))


def read_classes(path: Path, stored: files.NpzFile) -> tuple[NDArray[Any], list[str], list[str] | None]:
    """Return labels, names of classes and the official split, without reading the images.

    Raises:
        DataError: an array is missing, or has the wrong type, shape or values.
    """
    _check_headers(path, stored)
    names, labels = stored.read("class_names").tolist(), stored.read("labels")
    split = stored.read("class_split").tolist() if "class_split" in stored.names else None
    check_classes(str(path), labels, names, split)
    return labels, names, split


def _check_headers(path: Path, stored: files.NpzFile) -> tuple[int, ...]:
    """Return the shape of the images, `[n, height, width, channels]`, after checking the types and shapes of all."""
    if missing := [name for name in REQUIRED if name not in stored.names]:
        raise DataError(
            f"{path}: the arrays {', '.join(REQUIRED)} are required; missing: {', '.join(missing)}; "
            f"found: {', '.join(stored.names) or 'none'}."
        )
    images, labels = stored.header("images"), stored.header("labels")
    shape = (*images.shape, 1) if len(images.shape) == 3 else images.shape
    check_images(str(path), images.dtype, shape, square=False)
    check_labels(str(path), labels.dtype, labels.shape, shape[0])
    for name in ("class_names", "class_split"):
        if name not in stored.names:
            continue
        header = stored.header(name)
        if header.dtype.kind != "U" or len(header.shape) != 1:
            raise DataError(f"{path}: `{name}` must be an array of text [classes]; got {header}.")
        if header.shape[0] > shape[0]:
            raise DataError(
                f"{path}: every class needs an image; `{name}` has {header.shape[0]} entries for {shape[0]} images."
            )
    check_pixels(path, *shape[1:3])
    return shape

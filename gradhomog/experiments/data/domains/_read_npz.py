"""Images from one `.npz` file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.errors import DataError
from gradhomog.experiments.data.domains._pictures import square_resize
from gradhomog.experiments.data.domains.class_images import ClassImages

REQUIRED = ("images", "labels", "class_names")


def read_npz(path: Path, size: int) -> ClassImages:
    """Read `images` uint8 `[n, h, w]` or `[n, h, w, 1 or 3]`, `labels` `[n]`, `class_names`, optional `class_split`.

    Raises:
        DataError: with the path and the reason; pickled objects are never loaded.
    """
    arrays = _load(path)
    if missing := [name for name in REQUIRED if name not in arrays]:
        raise DataError(
            f"{path}: the arrays {', '.join(REQUIRED)} are needed; missing: {', '.join(missing)}; "
            f"found: {', '.join(sorted(arrays)) or 'none'}."
        )
    images, names, split = arrays["images"], arrays["class_names"], arrays.get("class_split")
    for name, array in (("class_names", names), ("class_split", split)):
        if array is not None and (array.dtype.kind != "U" or array.ndim != 1):
            raise DataError(f"{path}: `{name}` must be an array of text [classes]; got {array.dtype} {array.shape}.")
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype == np.uint8 and images.ndim == 4 and images.size and images.shape[3] in (1, 3):
        images = square_resize(images, size)  # else `ClassImages` says what is wrong
    return ClassImages(
        path.stem,
        images,
        arrays["labels"],
        names.tolist(),
        class_split=None if split is None else split.tolist(),
        source=str(path),
    )


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise DataError(f"{path}: is not an .npz file, or its end is cut off. Copy or download it again.")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file.") from error
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):  # which is a ValueError
            raise
        raise DataError(f"{path}: cannot be read as .npz, it may be damaged ({error}).") from error

"""Read picture files, crop them to a square and resize them."""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradhomog import DataError
from gradhomog_data._packages import require_package

MAX_PIXELS = 89_478_485
"""Maximum number of pixels of a picture: a quarter of a GiB as RGB. Above it, Pillow warns of a decompression bomb."""

ADVICE = "Use fewer or smaller images, or allow more with the option `max_bytes` of `images`."


def check_pixels(path: Path, height: int, width: int) -> None:
    """Raise `DataError` if the declared size of a picture is too large to decode."""
    if height * width > MAX_PIXELS:
        raise DataError(
            f"{path}: a picture of {width} x {height} pixels; at most {MAX_PIXELS:,} pixels are decoded. "
            "Make it smaller, or remove it."
        )


def check_memory(path: Path, shape: tuple[int, ...], max_bytes: int, remark: str = "") -> None:
    """Raise `DataError` if all images of a data set, at the network's input size, need more than `max_bytes`.

    The message contains `remark` before the advice.
    """
    if (needed := math.prod(shape)) > max_bytes:
        raise DataError(
            f"{path}: {shape[0]:,} images of {shape[1]} x {shape[2]} pixels with {shape[3]} channels take {needed:,} "
            f"bytes; at most {max_bytes:,} bytes are kept in memory. {remark}"
            f"{ADVICE} The option `size` sets their side."
        )


EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats of these extensions. Pillow detects the format from the content, and would run Ghostscript on PostScript."""

_BLOCK = 2**24
"""Number of pixel values that are resized at a time."""


def require_pillow(source: Path) -> None:
    """Raise `DataError`, with the extra to install, if Pillow is missing."""
    require_package(f"{source}: picture files are read with", "PIL", "Pillow", "images")


def check_picture(path: Path) -> None:
    """Raise `DataError` if the header of a picture cannot be read."""
    from PIL import Image

    with _describe_damage(path), Image.open(path, formats=FORMATS) as file:
        check_pixels(path, file.height, file.width)


def read_picture(path: str | Path, size: int, *, crop: bool = True) -> NDArray[np.uint8]:
    """Read a picture file as RGB, centre-cropped to a square and resized: `[size, size, 3]`.

    Without `crop` the whole picture is resized, which changes its proportions.

    Raises:
        DataError: the picture cannot be read.
    """
    from PIL import Image, ImageOps

    path = Path(path)
    with _describe_damage(path):
        with Image.open(path, formats=FORMATS) as file:
            check_pixels(path, file.height, file.width)  # `open` reads the header only
            picture = ImageOps.exif_transpose(_to_rgb(file))
        if crop:
            side = min(picture.size)
            left, top = (picture.width - side) // 2, (picture.height - side) // 2
            picture = picture.crop((left, top, left + side, top + side))
        # Pillow widens its filters with the scale, so that shrinking does not alias.
        return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)


def read_pictures(paths: Sequence[str | Path], size: int) -> NDArray[np.uint8]:
    """Read whole picture files as RGB in parallel, resized to squares without cropping: `[n, 3, size, size]`.

    Raises:
        DataError: a picture cannot be read.
    """
    with ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1)) as threads:  # Pillow decodes without Python's lock
        pictures = [*threads.map(lambda path: read_picture(path, size, crop=False), paths)]
    return np.stack(pictures).transpose(0, 3, 1, 2)


@contextmanager
def _describe_damage(path: Path) -> Iterator[None]:
    """Convert the errors of a picture file to `DataError`; Pillow's decoders raise anything."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `check_pixels` rejects these files
            yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such picture file.") from error
    except DataError:
        raise
    except Exception as error:  # OSError, SyntaxError, struct.error, ...
        content = describe_content(path) or str(error)
        raise DataError(f"{path}: cannot be read as a picture ({content}). Remove or replace the file.") from error


def describe_content(path: Path) -> str:
    """Return a description of a file that an interrupted or refused download left behind; empty for other files."""
    try:
        with path.open("rb") as file:
            start = file.read(512).lstrip().lower()
            empty = file.tell() == 0
    except OSError:
        return ""
    if empty:
        return "an empty file"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "a web page, probably the error page of a download"
    return ""


def _to_rgb(file: Any) -> Any:
    """Convert to RGB; Pillow itself would clip 16-bit grey values to white."""
    if not file.mode.startswith(("I", "F")):
        return file.convert("RGBA").convert("RGB") if "transparency" in file.info else file.convert("RGB")
    from PIL import Image

    values = np.asarray(file)
    if file.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError(f"pixels of mode {file.mode} have no known range; 8 or 16 bits per channel are supported")
    # value / 257, rounded; it is never halfway between two integers
    return Image.fromarray(((values.astype(np.int32) + 128) // 257).astype(np.uint8)).convert("RGB")


def square_resize(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Centre-crop `[n, height, width, channels]` to squares and resize without aliasing, without Pillow."""
    height, width = images.shape[1:3]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    images = images[:, top : top + side, left : left + side]
    if side == size:
        return images
    resized = np.empty((len(images), size, size, images.shape[3]), dtype=np.uint8)
    count = max(1, _BLOCK // (max(side, size) ** 2 * images.shape[3]))
    for start in range(0, len(images), count):  # in blocks: a float copy of a whole data set would not fit in memory
        block = torch.from_numpy(np.ascontiguousarray(images[start : start + count])).permute(0, 3, 1, 2).float()
        small = torch.nn.functional.interpolate(block, (size, size), mode="bilinear", antialias=True)
        resized[start : start + count] = small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    return resized

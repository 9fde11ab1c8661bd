"""Memory limits for images from untrusted files."""

from __future__ import annotations

import math
from pathlib import Path

from gradhomog import DataError

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

"""Picture files: opened, cropped to a square, brought to a size."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradhomog.errors import DataError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def require_pillow(source: Path) -> None:
    """Raise `DataError`, naming the extra to install, where Pillow is missing."""
    if importlib.util.find_spec("PIL") is None:
        raise DataError(
            f"{source}: picture files are read with Pillow, which is not installed. "
            "Install it with: pip install 'gradhomog[images]'"
        )


def read_pictures(paths: Iterable[Path], size: int) -> NDArray[np.uint8]:
    """Read picture files as RGB: centre-cropped to a square and resized, `[n, size, size, 3]`."""
    return np.stack([_read(path, size) for path in paths])


def _read(path: Path, size: int) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            picture = ImageOps.exif_transpose(_rgb(file))
            side = min(picture.size)
            left, top = (picture.width - side) // 2, (picture.height - side) // 2
            square = picture.crop((left, top, left + side, top + side))
            # Pillow's filters widen with the scale: no aliasing when shrinking
            return np.asarray(square.resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such picture file.") from error
    except DataError:
        raise
    except Exception as error:  # decoders raise anything: OSError, SyntaxError, struct.error, ...
        raise DataError(f"{path}: cannot be read as a picture ({error}). Remove or replace the file.") from error


def _rgb(file: Any) -> Any:
    """Convert to RGB; Pillow itself would clip 16-bit grey to white."""
    if not file.mode.startswith(("I", "F")):
        return file.convert("RGBA").convert("RGB") if "transparency" in file.info else file.convert("RGB")
    from PIL import Image

    values = np.asarray(file)
    if file.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError(f"pixels of mode {file.mode} have no known range; 8 or 16 bits a channel are understood")
    return Image.fromarray(np.rint(values / 257).astype(np.uint8)).convert("RGB")


def square_resize(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Centre-crop `[n, height, width, channels]` to squares and resize without aliasing; needs no Pillow."""
    height, width = images.shape[1:3]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    images = images[:, top : top + side, left : left + side]
    if side == size:
        return images
    resized = np.empty((len(images), size, size, images.shape[3]), dtype=np.uint8)
    for start in range(0, len(images), 256):  # in blocks: float copies of a whole data set would not fit
        block = torch.from_numpy(np.ascontiguousarray(images[start : start + 256])).permute(0, 3, 1, 2).float()
        small = torch.nn.functional.interpolate(block, (size, size), mode="bilinear", antialias=True)
        resized[start : start + 256] = small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    return resized

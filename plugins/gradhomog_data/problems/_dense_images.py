"""Images with targets for each pixel, in folders of `.npy` files as MTAN's NYUv2 and Cityscapes, and augmentation."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from gradhomog import DataError

IMAGE, SEGMENTATION, DEPTH, NORMAL = "image", "segmentation", "depth", "normal"

CHANNELS = {IMAGE: (3,), SEGMENTATION: (), DEPTH: (1,), NORMAL: (3,)}
"""Channels of each kind of file; height and width come before them."""

IGNORED = -1
"""The label of a pixel without a class."""

RANGES = {IMAGE: (-1.0, 2.0), DEPTH: (-1e3, 1e3), NORMAL: (-1.1, 1.1)}
"""Bounds of values in the files: wide, because resized images exceed [0, 1], but neither bytes nor NaN are accepted."""

SCALES = (1.0, 1.2, 1.5)
"""Factors of random enlargement."""

Maps = dict[str, Tensor]
"""Float32 `[channels, height, width]` of each kind; labels have one channel."""


class DenseImages:
    """The images of a folder such as `train`, with a folder for each kind that has `0.npy` to `{n - 1}.npy`.

    Files are arrays `[height, width, *channels]`: float images in [0, 1], labels from 0 to classes - 1 or -1, float
    depths, of which 0 is unknown, and float unit normals, of which (0, 0, 0) is unknown. They are mapped into memory,
    and read when an image is.

    Args:
        folder: the folder of the split.
        names: the folder of each kind; of several names, the first that exists.
        classes: number of classes.

    Raises:
        DataError: a file is missing, cannot be read, or has another shape or type; the message names it.
    """

    def __init__(self, folder: Path, names: Mapping[str, Sequence[str]], classes: int) -> None:
        self.classes = classes
        self.folders = {
            kind: next((path for path in map(folder.joinpath, options) if path.is_dir()), folder / options[0])
            for kind, options in names.items()
        }
        counts = {path: len([*path.glob("[0-9]*.npy")]) for path in self.folders.values()}
        self.count = max(counts.values())
        if min(counts.values()) < max(self.count, 1):
            found = ", ".join(f"{count} in {path}" for path, count in counts.items())
            raise DataError(
                f"`problem.data` must have files 0.npy, 1.npy, ..., the same number in each folder; found {found}."
            )
        self.size: tuple[int, ...] = self._open(IMAGE, 0, ()).shape[:2]
        if any(side % 32 for side in self.size):
            raise DataError(f"{self._path(IMAGE, 0)}: height and width must be multiples of 32; found {self.size}.")
        for kind in self.folders:
            for index in range(self.count):
                self._open(kind, index, self.size)

    def _path(self, kind: str, index: int) -> Path:
        return self.folders[kind] / f"{index}.npy"

    def _open(self, kind: str, index: int, size: tuple[int, ...]) -> NDArray[np.float64]:
        path = self._path(kind, index)
        if not path.is_file():
            raise DataError(f"{path} is missing: the folder has {self.count} files, numbered from 0. Copy it again.")
        try:
            array: NDArray[np.float64] = open_memmap(path, mode="r")
        except (OSError, ValueError) as cause:
            raise DataError(f"{path}: not a complete .npy file ({cause}). Copy it again.") from cause
        expected = (*(size or array.shape[:2]), *CHANNELS[kind])
        if array.shape != expected or array.dtype.kind not in ("fiu" if kind == SEGMENTATION else "f"):
            numbers = "numbers" if kind == SEGMENTATION else "floats"
            raise DataError(f"{path}: expected {numbers} {expected}; found {array.dtype} {array.shape}.")
        return array

    def read(self, index: int, device: torch.device) -> Maps:
        """Return the image with this number, and its targets.

        Raises:
            DataError: a value is out of range, or not a finite number.
        """
        arrays = {kind: np.array(self._open(kind, index, self.size), dtype=np.float32) for kind in self.folders}
        arrays[SEGMENTATION] = arrays[SEGMENTATION][..., None]
        for kind, (low, high) in (RANGES | {SEGMENTATION: (IGNORED, self.classes - 1)}).items():
            if kind in arrays and not (low <= arrays[kind].min() and arrays[kind].max() <= high):
                found = f"{arrays[kind].min():g} to {arrays[kind].max():g}"
                path = self._path(kind, index)
                raise DataError(f"{path}: values must be from {low:g} to {high:g}; found {found}.")
        return {kind: torch.from_numpy(array).to(device).movedim(-1, 0) for kind, array in arrays.items()}

    @property
    def fingerprint(self) -> str:
        """A hash of the number of images and of the files of the first; reading all would take minutes."""
        first = b"".join(self._path(kind, 0).read_bytes() for kind in self.folders)
        return hashlib.sha256(str(self.count).encode() + first).hexdigest()[:12]


def augment(maps: Mapping[str, Tensor], random: np.random.Generator) -> Maps:
    """Return a random part of an image, enlarged to its size by 1, 1.2 or 1.5, and mirrored with probability 1/2.

    Images and normals are interpolated bilinearly, labels and depths are those of the nearest pixel. Depths are divided
    by the factor, and the x component of mirrored normals is negated. Interpolated normals are not normalized, as in
    the code of MTAN (J. Wu, lorenmt/mtan issue 34); CAGrad, Nash-MTL, FAMO and FairGrad use the same function.
    """
    height, width = maps[IMAGE].shape[-2:]
    scale = SCALES[random.integers(len(SCALES))]
    part = int(height / scale), int(width / scale)
    top, left = (int(random.integers(full - side + 1)) for full, side in zip((height, width), part, strict=True))
    mirrored = random.random() < 0.5
    result = {}
    for kind, values in maps.items():
        cut = values[None, :, top : top + part[0], left : left + part[1]]
        smooth = {"mode": "bilinear", "align_corners": True} if kind in (IMAGE, NORMAL) else {"mode": "nearest"}
        enlarged = interpolate(cut, (height, width), **smooth)[0]
        result[kind] = enlarged.flip(-1) if mirrored else enlarged
    result[DEPTH] = result[DEPTH] / scale
    if mirrored and NORMAL in result:
        result[NORMAL][0] *= -1
    return result

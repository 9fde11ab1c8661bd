"""The 1797 handwritten digits of 8 × 8 pixels in scikit-learn, divided into training, validation and test."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradhomog_data._seeding import generator
from gradhomog_data.problems._optional_import import import_optional

CLASSES, PIXELS = 10, 64

TRAIN, VALIDATION = 900, 297
"""Numbers of digits for training and for validation; the other 600 are for test."""


@functools.cache  # one process runs many trainings on the same data
def load() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pictures `[1797, 8, 8]` with values of 0 to 255, and their classes.

    Raises:
        DataError: scikit-learn is not installed.
    """
    module: Any = import_optional("sklearn.datasets", "scikit-learn", "digits of 8 × 8 pixels")
    pixels, labels = module.load_digits(return_X_y=True)
    pictures = np.rint(np.asarray(pixels) * (255 / 16)).astype(np.uint8)
    return pictures.reshape(-1, 8, 8), np.asarray(labels, dtype=np.int64)


def splits(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return pixels `[n, 64]` in [-1, 1] and classes `[n]` of each split, divided at random with `seed`."""
    pictures, labels = load()
    pixels = torch.from_numpy(pictures).flatten(1).float().div_(127.5).sub_(1.0)
    order = torch.from_numpy(generator(seed).permutation(len(labels)))
    chosen = order.tensor_split((TRAIN, TRAIN + VALIDATION))
    names = ("train", "validation", "test")
    return {name: (pixels[rows], torch.from_numpy(labels)[rows]) for name, rows in zip(names, chosen, strict=True)}

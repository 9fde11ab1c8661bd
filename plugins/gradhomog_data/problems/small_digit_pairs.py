"""Classify two overlaid digits of 8 × 8 pixels: MultiMNIST (Sener & Koltun 2018) that trains in a second."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from gradhomog import MultiTaskData, ProblemRun, ProblemSpec, hookimpl
from gradhomog_data.problems import _pairs, _small_digits

SIZE = 10
"""Side of a pair: digits of 8 pixels, shifted by 2."""

COUNTS = (4000, 500, 1500)
"""Pairs for training, validation and test."""


def small_digit_pairs(run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> MultiTaskData:
    """Return pairs of `[1, 10, 10]`, in [-1, 1].

    Args:
        seed: of all random choices.
    """
    pictures, labels = _small_digits.load()
    by_class = [pictures[labels == digit] for digit in range(_small_digits.CLASSES)]
    note = "Two overlaid digits of 8 × 8 pixels, from the 1797 of scikit-learn."
    return _pairs.pair_data(by_class, SIZE, COUNTS, 64, seed, note)


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return ProblemSpec(
        factory=small_digit_pairs,
        summary="classify two overlaid digits of 8 × 8 pixels: MultiMNIST that trains in a second",
        reference="Sener, Koltun 2018, arXiv:1810.04650",
        defaults={
            "network": {"name": "mlp", "width": 32},
            "train": {"steps": 800, "outer_lr": 0.003, "validate_every": 50, "log_every": 50, "checkpoint_every": 500},
        },
        unused_keys=("network.size",),
    )

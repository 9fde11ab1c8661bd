"""Regressions of unequal scale and difficulty on shared features, which compete for a network that is too small."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from gradhomog import Examples, MultiTaskData, ProblemRun, ProblemSpec, hookimpl
from gradhomog_data._seeding import generator
from gradhomog_data.problems._held_out import divide

INPUTS, FEATURES = 8, 24

COUNTS = (512, 256, 1024)
"""Examples for training, validation and test."""

LARGEST_SCALE, GAIN, NOISE = 10.0, (0.5, 2.0), 0.1
"""Standard deviation of the task of largest scale; range of the gains; noise relative to the standard deviation."""


def unequal_regressions(
    run: ProblemRun, *, tasks: Annotated[int, Ge(2)] = 5, seed: Annotated[int, Ge(0)] = 0
) -> MultiTaskData:
    """Return targets y_t = s_t (a_t · tanh(g_t W x) + noise) of standard normal inputs x with 8 entries.

    The rows of W are random directions shared by the tasks; a_t is random. Gains g_t from 1/2, nearly linear, to 2
    make tasks unequally difficult. Standard deviations s_t from 1/10 to 10 make their losses differ by four orders of
    magnitude. Both are spaced logarithmically, and the order of the scales is random with respect to that of the gains.
    The noise has a tenth of the standard deviation of the signal, so that R² is at most 0.99.

    Args:
        tasks: number of regressions.
        seed: of all random choices.
    """
    random = generator(seed)
    x = random.standard_normal((sum(COUNTS), INPUTS))
    directions = random.standard_normal((INPUTS, FEATURES)) / np.sqrt(INPUTS)
    gains, scales = (
        np.geomspace(*GAIN, tasks),
        random.permutation(np.geomspace(1 / LARGEST_SCALE, LARGEST_SCALE, tasks)),
    )
    targets = []
    for gain, scale in zip(gains, scales, strict=True):
        signal = np.tanh(gain * x @ directions) @ random.standard_normal(FEATURES)
        signal = (signal - signal.mean()) / signal.std()
        noisy = scale * (signal + NOISE * random.standard_normal(len(signal)))
        targets.append(noisy[:, None].astype(np.float32))
    splits = divide(COUNTS, x.astype(np.float32), *targets)
    train, validation, test = (Examples(inputs, tuple(outputs)) for inputs, *outputs in splits.values())
    names = tuple(f"scale {scale:.3g}" for scale in scales)
    note = f"Generated regressions; in the order of difficulty: {', '.join(names)}."
    return MultiTaskData(names, (1,) * tasks, 64, train, validation, test, (note,))


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return ProblemSpec(
        factory=unequal_regressions,
        summary="generated regressions of unequal scale and difficulty, with a network too small for all",
        defaults={
            "network": {"name": "mlp", "width": 16},
            "train": {"steps": 600, "outer_lr": 0.01, "validate_every": 50, "log_every": 50, "checkpoint_every": 500},
        },
        unused_keys=("network.size",),
    )

"""Scales of the paper's experiments: the settings of the paper, and smaller ones for smaller machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Scale:
    """Settings of one scale.

    Attributes:
        summary: length and machine, for `--help` and the report.
        keys: values of run-file keys, as in `--set`.
        weak_network, strong_network: the table `network` of the weak and of the strong problem.
        solver: solver of `reweight`: `"gradient"` is the paper's leader with rate 5e-4, which moves the weights by less
            than a tenth in a few hundred steps; `"fixed_point"` is its limit.
    """

    summary: str
    keys: Mapping[str, Any]
    weak_network: Mapping[str, Any]
    strong_network: Mapping[str, Any]
    solver: Literal["gradient", "fixed_point"]


def _conv4(size: int, width: int) -> dict[str, Any]:
    return {"name": "conv4", "size": size, "width": width}


_SHORT_TRAINING: dict[str, Any] = {  # rates at which a few hundred steps train the network
    "train.inner_lr": 0.05, "train.inner_steps": 3, "train.outer_lr": 0.002, "episodes.queries": 5,
}  # fmt: skip

_LONG_TRAINING: dict[str, Any] = {  # rates of the paper
    "train.inner_lr": 0.01, "train.inner_steps": 5, "train.outer_lr": 0.001, "episodes.queries": 15, "seeds": 3,
    "test.episodes": 600,
}  # fmt: skip

SCALES: Mapping[str, Scale] = {
    "smoke": Scale(
        "20 steps, one seed, 32 px: minutes on two cores, to check data and command; do not read the numbers",
        {
            **_SHORT_TRAINING, "seeds": 1, "train.steps": 20, "train.validate_every": 10,
            "train.validation_episodes": 10, "train.log_every": 5, "test.episodes": 40,
        },
        _conv4(32, 16),
        _conv4(32, 16),
        "fixed_point",
    ),
    "small": Scale(
        "400 steps, five seeds, 32 px, conv4 with 16 filters: hours on two cores",
        {
            **_SHORT_TRAINING, "seeds": 5, "train.steps": 400, "train.validate_every": 100,
            "train.validation_episodes": 60, "train.log_every": 20, "test.episodes": 300,
        },
        _conv4(32, 16),
        _conv4(32, 16),
        "fixed_point",
    ),
    "medium": Scale(
        "6,000 steps, three seeds, 84 px, conv4 with 64 filters: hours on a GPU",
        {
            **_LONG_TRAINING, "train.steps": 6000, "train.validate_every": 500, "train.validation_episodes": 100,
            "train.log_every": 50, "train.checkpoint_every": 250,
        },
        _conv4(84, 64),
        _conv4(84, 64),
        "gradient",
    ),
    "paper": Scale(
        "60,000 steps, three seeds; conv4 with 64 filters at 84 px (weak), resnet10 at 224 px (strong): days on GPUs",
        {
            **_LONG_TRAINING, "train.steps": 60_000, "train.validate_every": 1000, "train.validation_episodes": 200,
            "train.log_every": 100, "train.checkpoint_every": 500,
        },
        _conv4(84, 64),
        {"name": "resnet10", "size": 224, "width": 64},
        "gradient",
    ),
}  # fmt: skip
"""Scales by name. In all of them: four tasks per batch, standard augmentation, 15 queries per class at meta-test."""

COMMON: Mapping[str, Any] = {"episodes.tasks": 4, "train.augmentation": "standard", "test.queries": 15}
"""Settings of all scales."""

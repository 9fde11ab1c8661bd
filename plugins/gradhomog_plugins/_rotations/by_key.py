"""Rotations of the tasks of a batch, by key; a key without a rotation has the identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import DataError
from gradhomog_plugins._rotations.base import Rotation


def check_features(owner: str, rotation: Rotation | None, features: int) -> None:
    """Raises `DataError` unless a rotation of all features has as many as there are."""
    if rotation is not None and rotation.size != features:
        raise DataError(
            f"{owner}: features must keep their number, {rotation.size}; got {features}. "
            "Make a new pipeline for another encoder."
        )


def rotate_tasks(rotations: Sequence[Rotation | None], vectors: Tensor, transposed: bool = False) -> Tensor:
    """R_k x (or R_kᵀ x) of each task's vectors `[tasks, ..., m]`; the same tensor where all rotations are None."""
    if all(rotation is None for rotation in rotations):
        return vectors
    return torch.stack(
        [
            task if rotation is None else rotation.rotate(task, transposed)
            for rotation, task in zip(rotations, vectors, strict=True)
        ]
    )


def angles(rotations: Sequence[Rotation | None]) -> list[float]:
    """The angle of each, in radians."""
    return [0.0 if rotation is None else rotation.angle for rotation in rotations]


def with_latest(
    state: Mapping[str, Tensor], keys: Sequence[str], turned: Mapping[str, Rotation], limit: int | None = None
) -> dict[str, Tensor]:
    """The state after a batch: its keys last, in order; of more than `limit` the least recently used keys leave.

    Keys of the batch never leave.
    """
    current = {key: turned[key].tensor if key in turned else state[key] for key in dict.fromkeys(keys)
               if key in turned or key in state}  # fmt: skip
    others = {key: tensor for key, tensor in state.items() if key not in current}
    leaving = max(0, len(others) + len(current) - limit) if limit is not None else 0
    return {**dict(list(others.items())[leaving:]), **current}

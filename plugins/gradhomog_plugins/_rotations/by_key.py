"""Rotations of the tasks of a batch, by key. A key without a rotation has the identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import DataError
from gradhomog_plugins._rotations.base import Rotation


def check_features(owner: str, rotation: Rotation | None, features: int) -> None:
    """Raise `DataError` if the number of features is not that of the rotation."""
    if rotation is not None and rotation.size != features:
        raise DataError(
            f"{owner}: the number of features must not change, {rotation.size}; got {features}. "
            "Construct a new pipeline for another encoder."
        )


def rotate_tasks(rotations: Sequence[Rotation | None], vectors: Tensor, transposed: bool = False) -> Tensor:
    """Return R_k x (or R_kᵀ x) for each task's vectors `[tasks, ..., m]`; the same tensor if all rotations are None."""
    if all(rotation is None for rotation in rotations):
        return vectors
    return torch.stack(
        [
            task if rotation is None else rotation.rotate(task, transposed)
            for rotation, task in zip(rotations, vectors, strict=True)
        ]
    )


def angles(rotations: Sequence[Rotation | None]) -> list[float]:
    """Return the angle of each rotation, in radians."""
    return [0.0 if rotation is None else rotation.angle for rotation in rotations]


def updated_state(
    state: Mapping[str, Tensor], keys: Sequence[str], updated: Mapping[str, Rotation], limit: int | None = None
) -> dict[str, Tensor]:
    """Return the stored rotations after a batch, ordered from the least to the most recently used key.

    If there are more than `limit` keys, the least recently used ones are removed; keys of this batch are never removed.
    """
    current = {key: updated[key].tensor if key in updated else state[key] for key in dict.fromkeys(keys)
               if key in updated or key in state}  # fmt: skip
    others = {key: tensor for key, tensor in state.items() if key not in current}
    removed = max(0, len(others) + len(current) - limit) if limit is not None else 0
    return {**dict(list(others.items())[removed:]), **current}

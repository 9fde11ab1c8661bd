"""The rotations of a homogenizer, one for each key: made when first met, saved, and forgotten when there are many."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradhomog import DataError
from gradhomog_plugins import _rotations
from gradhomog_plugins._rotations.base import Rotation, Settings


class Rotations(dict[str, Rotation]):
    """Rotations that have been turned, the most recently used last.

    Args:
        owner: the homogenizer's name, for errors.
        parameterization: a name in `_rotations.BY_NAME`.
        settings: of every rotation.
        seed: of what is random in them when they are made.
    """

    def __init__(self, owner: str, parameterization: str, settings: Settings, seed: int) -> None:
        super().__init__()
        self.owner, self.parameterization, self.settings, self.seed = owner, parameterization, settings, seed

    def at(self, key: str, features: int) -> Rotation:
        """The one under a key, or a new one; changes nothing.

        Raises:
            DataError: it is of another number of features.
        """
        found = self.get(key)
        if found is None:
            # A seed of its own for each key, and the same whatever keys came before it.
            seed = zlib.crc32(f"{self.seed}/{key}".encode())
            return _rotations.make(self.parameterization, features, self.settings, seed)
        if found.features != features:
            raise DataError(
                f"{self.owner}: features must keep their number, {found.features}; got {features}. "
                "Make a new pipeline for another encoder."
            )
        return found

    def used(self, key: str, features: int) -> Rotation:
        """The one under a key, which is held from now on."""
        rotation = self.at(key, features)
        self.pop(key, None)
        self[key] = rotation
        return rotation

    def rotated(self, features: Tensor, keys: Sequence[str]) -> Tensor:
        """R_k z of each task's features `[tasks, ..., m]`; the very tensor given where all are the identity."""
        found = [self.at(key, features.shape[-1]) for key in keys]
        if not any(rotation.tensors for rotation in found):
            return features
        return torch.stack([rotation.rotate(task) for task, rotation in zip(features, found, strict=True)])

    def keep(self, limit: int) -> None:
        """Forget the least recently used until so many are left."""
        while len(self) > limit:
            del self[next(iter(self))]

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """A copy of all, by key."""
        return {
            key: {name: value.clone() if isinstance(value, Tensor) else value
                  for name, value in rotation.state_dict().items()}
            for key, rotation in self.items()
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over saved rotations.

        Raises:
            ConfigError: they were saved by another parameterisation.
        """
        restored = {
            key: _rotations.restore(self.parameterization, self.settings, saved) for key, saved in state.items()
        }
        self.clear()
        self.update(restored)

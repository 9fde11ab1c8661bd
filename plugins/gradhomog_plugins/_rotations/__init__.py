"""Parameterisations of a rotation R in SO(m): identity when made, exactly orthogonal ever after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradhomog import ConfigError
from gradhomog_plugins._rotations.base import Rotation, Settings
from gradhomog_plugins._rotations.cayley import LowRankCayley
from gradhomog_plugins._rotations.dense import DenseCayley, DenseExponential, Subspace
from gradhomog_plugins._rotations.geodesic import Geodesic
from gradhomog_plugins._rotations.plane import Plane
from gradhomog_plugins._rotations.procrustes import Procrustes

BY_NAME: Mapping[str, type[Rotation]] = {
    "plane": Plane,
    "procrustes": Procrustes,
    "cayley": LowRankCayley,
    "geodesic": Geodesic,
    "subspace": Subspace,
    "dense_cayley": DenseCayley,
    "expm": DenseExponential,
}


def make(name: str, features: int, settings: Settings, seed: int) -> Rotation:
    """The identity of SO(features) in a parameterisation."""
    return BY_NAME[name](features, settings, seed)


def restore(name: str, settings: Settings, state: Mapping[str, Any]) -> Rotation:
    """A rotation as it was saved.

    Raises:
        ConfigError: it was saved by another parameterisation.
    """
    wanted = {"features", "seed", *BY_NAME[name].saved}
    if not isinstance(state, Mapping) or set(state) != wanted:
        found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
        raise ConfigError(
            f"rotate: a saved rotation of parameterization {name!r} holds {sorted(wanted)}; found {found}. "
            "It was saved by another parameterization, homogenizer or version."
        )
    rotation = BY_NAME[name](int(state["features"]), settings, int(state["seed"]))
    rotation.load_state_dict(state)
    return rotation

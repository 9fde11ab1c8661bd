"""Parameterisations of a rotation R in SO(m): identity when made unless told otherwise, orthogonal ever after."""

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
from gradhomog_plugins._rotations.riemannian import Riemannian

BY_NAME: Mapping[str, type[Rotation]] = {
    "plane": Plane,
    "procrustes": Procrustes,
    "cayley": LowRankCayley,
    "geodesic": Geodesic,
    "riemannian": Riemannian,
    "subspace": Subspace,
    "dense_cayley": DenseCayley,
    "expm": DenseExponential,
}


def make(name: str, features: int, settings: Settings, seed: int) -> Rotation:
    """A rotation of so many features in a parameterisation, as it is at first."""
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
            f"a saved rotation of parameterization {name!r} holds {sorted(wanted)}; found {found}. "
            "It was saved by another parameterization, homogenizer or version."
        )
    rotation = BY_NAME[name](int(state["features"]), settings, int(state["seed"]))
    rotation.load_state_dict(state)
    return rotation

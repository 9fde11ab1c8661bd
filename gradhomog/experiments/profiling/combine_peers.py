"""TorchJD's aggregators, made as its users make them; for comparison only."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradhomog.errors import PluginRunError
from gradhomog.experiments.profiling.inputs import Gradients

NAMES: Mapping[str, str] = {
    "none": "Mean",
    "pcgrad": "PCGrad",
    "gradvac": "GradVac",
    "mgda": "MGDA",
    "upgrad": "UPGrad",
    "dualproj": "DualProj",
    "cagrad": "CAGrad",
    "imtl_g": "IMTLG",
    "nash_mtl": "NashMTL",
    "fairgrad": "FairGrad",
    "aligned_mtl": "AlignedMTL",
    "config": "ConFIG",
    "graddrop": "GradDrop",
    "excess_mtl": "ExcessMTL",
}
"""By our name the class of TorchJD that is the same method."""


def aggregator(name: str, tasks: int) -> Any:
    """A new one.

    Raises:
        ImportError: TorchJD, or what it needs for this one, is not installed; says what is left out.
    """
    if importlib.util.find_spec("torchjd") is None:
        raise ImportError("TorchJD is left out: torchjd is not installed.")
    module = importlib.import_module("torchjd.aggregation")
    # Without a default in TorchJD: what the authors' own scripts have (Liu et al. 2021, Ban and Ji 2024).
    needed: dict[str, dict[str, Any]] = {
        "CAGrad": {"c": 0.4},
        "FairGrad": {"alpha": 2.0},
        "NashMTL": {"n_tasks": tasks},
    }
    try:
        return getattr(module, name)(**needed.get(name, {}))
    except (ImportError, AttributeError) as cause:  # a solver is missing; or TorchJD is older than the class
        raise ImportError(f"torchjd {name} is left out: {cause}") from cause


class Peer:
    """One call of an aggregator on the matrix."""

    def __init__(self, name: str, tasks: int) -> None:
        self.name, self.aggregator = name, aggregator(name, tasks)

    def __call__(self, given: Gradients) -> Tensor:
        try:
            direction: Tensor = self.aggregator(given.rows)
        except Exception as cause:  # whatever its solver raises: the others go on
            raise PluginRunError(f"TorchJD's {self.name} raised {type(cause).__name__}: {cause}") from cause
        return direction


class QuietPeer(Peer):
    """The same without the warnings of its solver."""

    def __call__(self, given: Gradients) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().__call__(given)


def peer(name: str, tasks: int) -> Peer:
    """The one to be timed; quiet only where it warns of itself, as microseconds count where it does not.

    Raises:
        ImportError: see `aggregator`.
    """
    return (QuietPeer if name == "NashMTL" else Peer)(name, tasks)

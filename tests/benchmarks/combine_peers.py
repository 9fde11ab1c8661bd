"""TorchJD's aggregators on a Jacobian, constructed as TorchJD's users do."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torchjd.aggregation
from torch import Tensor

from gradhomog.errors import PluginRunError
from tests.benchmarks.combine_inputs import Gradients

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
"""The class of TorchJD that implements the same method, by the name of the homogenizer."""


def aggregator(name: str, tasks: int) -> Any:
    """A new aggregator."""
    # TorchJD has no defaults for these; values of the authors' scripts (Liu et al. 2021, Ban and Ji 2024).
    required: dict[str, dict[str, Any]] = {
        "CAGrad": {"c": 0.4},
        "FairGrad": {"alpha": 2.0},
        "NashMTL": {"n_tasks": tasks},
    }
    return getattr(torchjd.aggregation, name)(**required.get(name, {}))


class Peer:
    """One call of an aggregator on the matrix."""

    def __init__(self, name: str, tasks: int) -> None:
        self.name, self.aggregator = name, aggregator(name, tasks)

    def __call__(self, given: Gradients) -> Tensor:
        try:
            direction: Tensor = self.aggregator(given.rows)
        except Exception as cause:  # errors of its solver; the other workloads continue
            raise PluginRunError(f"TorchJD's {self.name} raised {type(cause).__name__}: {cause}") from cause
        return direction


class QuietPeer(Peer):
    """One call of an aggregator, without the warnings of its solver."""

    def __call__(self, given: Gradients) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().__call__(given)


def peer(name: str, tasks: int) -> Peer:
    """The workload of an aggregator. Only NashMTL, whose solver warns, uses `QuietPeer`, which takes microseconds."""
    return (QuietPeer if name == "NashMTL" else Peer)(name, tasks)

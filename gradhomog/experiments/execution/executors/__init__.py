"""Executors, which compute runs: on this machine, on a cluster of Dask or Ray, as jobs of Slurm, or on all ranks.

An executor is called with jobs and yields one outcome per job, in any order. Results do not depend on the executor:
a run is a function of its configuration and writes only its own folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.execution.executors.base import Executor
from gradhomog.experiments.execution.executors.clusters import Dask, Ray
from gradhomog.experiments.execution.executors.local import Local
from gradhomog.experiments.execution.executors.ranks import TorchrunRanks
from gradhomog.experiments.execution.executors.slurm import Slurm
from gradhomog.registry import expression

KINDS: dict[str, Callable[..., Executor]] = {
    "local": Local,
    "dask": Dask,
    "ray": Ray,
    "slurm": Slurm,
    "ranks": TorchrunRanks,
}


def executor(text: str, jobs: int, folder: Path) -> Executor:
    """Return an executor from its text, such as `"local"`, `'dask(address="tcp://head:8786")'` or
    `'slurm(slurm_partition="cpu", timeout_min=60)'`.

    Args:
        jobs: number of runs at the same time; 0: one per core, or as many as the cluster accepts.
        folder: folder of the comparison; all machines share it.

    Raises:
        ConfigError: the name or an option is unknown.
        ExpressionError: the text does not parse.
    """
    name, options = expression.parse_one(text)
    if name not in KINDS:
        raise ConfigError(f"--executor must be one of {', '.join(KINDS)}; got {name!r}.{did_you_mean(name, KINDS)}")
    kind = KINDS[name]
    parameters = inspect.signature(kind).parameters
    accepted = [option for option in parameters if option not in ("jobs", "folder")]
    if "options" not in parameters and (unknown := sorted(set(options) - set(accepted))):
        raise ConfigError(f"--executor {name} has no option {unknown[0]!r}; it has: {', '.join(accepted) or 'none'}.")
    return kind(jobs=jobs, folder=folder, **options)

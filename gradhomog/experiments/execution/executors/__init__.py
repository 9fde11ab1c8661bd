"""The executors by name: where the runs of a comparison are computed."""

import inspect
from pathlib import Path

from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.execution.executors.clusters import Dask, Slurm
from gradhomog.experiments.execution.executors.local import Local
from gradhomog.experiments.execution.executors.ranks import TorchrunRanks
from gradhomog.experiments.execution.worker import Executor
from gradhomog.registry import expression

EXECUTORS: dict[str, type[Executor]] = {"dask": Dask, "local": Local, "ranks": TorchrunRanks, "slurm": Slurm}


def make_executor(text: str, jobs: int, folder: Path) -> Executor:
    """Return an executor from its text, such as `"local"`, `'dask(address="tcp://head:8786")'` or
    `'slurm(slurm_partition="cpu", timeout_min=60)'`.

    Args:
        text: a name of `EXECUTORS`, with its options.
        jobs: number of runs at the same time; 0: one per core, or as many as the cluster accepts.
        folder: folder of the comparison; all machines share it.

    Raises:
        ConfigError: the name or an option is unknown, or a package is missing. OptionError: an option has the wrong
            type. ExpressionError: the text does not parse.
    """
    name, options = expression.parse_one(text)
    if name not in EXECUTORS:
        known = ", ".join(EXECUTORS)
        raise ConfigError(f"--executor: unknown executor {name!r}.{did_you_mean(name, EXECUTORS)} Executors: {known}.")
    signature = inspect.signature(EXECUTORS[name])
    try:
        signature.bind(jobs=jobs, folder=folder, **options)
    except TypeError as cause:
        accepted = ", ".join(str(one) for one in signature.parameters.values() if one.name not in ("jobs", "folder"))
        raise ConfigError(f"--executor {name}: {cause}. Its options: {accepted or 'none'}.") from cause
    return EXECUTORS[name](jobs=jobs, folder=folder, **options)

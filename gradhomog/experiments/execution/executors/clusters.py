"""Runs on a cluster, by joblib's backends for Dask and Ray. All machines share the folder of the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.executors.base import Executor
from gradhomog.experiments.execution.worker import Job, Outcome


class Dask(Executor):
    """The workers of a Dask cluster.

    Args:
        jobs: how many runs at a time; 0: as many as the cluster has threads.
        folder: of the comparison.
        address: of the scheduler, `"tcp://head:8786"`; without it a cluster of processes on this machine is started.
    """

    def __init__(self, *, jobs: int, folder: Path, address: str | None = None) -> None:
        self.jobs, self.address = jobs or -1, address
        self.make_client = _needed("distributed", "dask").Client
        self.client: Any = None

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        if self.client is None:
            self.client = self.make_client(self.address, set_as_default=True)
        with parallel_config(backend="dask", n_jobs=self.jobs):
            yield from _parallel(jobs)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self.client is not None:
            self.client.close()


class Ray(Executor):
    """The workers of a Ray cluster.

    Args:
        jobs: how many runs at a time; 0: as many as the cluster has processors.
        folder: of the comparison.
        address: of the head, or `"auto"`; without it Ray is started on this machine.
    """

    def __init__(self, *, jobs: int, folder: Path, address: str | None = None) -> None:
        self.jobs, self.address = jobs or -1, address
        self.ray = _needed("ray", "ray")

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        from ray.util.joblib import register_ray

        self.ray.init(address=self.address, ignore_reinit_error=True)
        register_ray()
        with parallel_config(backend="ray", n_jobs=self.jobs):
            yield from _parallel(jobs)


def _parallel(jobs: Sequence[Job]) -> Iterable[Outcome]:
    """Outcomes as the backend of the context gives them."""
    outcomes: Iterable[Outcome] = Parallel(batch_size=1, return_as="generator_unordered")(
        delayed(_make)(job) for job in jobs
    )
    return outcomes


def _make(job: Job) -> Outcome:
    # A function, as joblib's Dask backend hashes what it calls: a job holds lists, and the backend then waits forever.
    return job()


def _needed(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise ConfigError(
            f"--executor {extra} needs the package {module!r}. Install it with: pip install 'gradhomog[{extra}]'"
        ) from cause

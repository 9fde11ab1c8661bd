"""Runs on a cluster: by Dask's futures, or by joblib's backend for Ray. All machines share the comparison's folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, cpu_count, delayed, parallel_config

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.executors.base import Executor
from gradhomog.experiments.execution.worker import Job, Outcome


class Dask(Executor):
    """The workers of a Dask cluster. A worker makes one run at a time, however many threads it has.

    Args:
        jobs: how many runs at a time; 0: as many as there is room for.
        folder: of the comparison.
        address: of the scheduler, `"tcp://head:8786"`; without it workers of one thread are started on this machine.
    """

    def __init__(self, *, jobs: int, folder: Path, address: str | None = None) -> None:
        self.jobs, self.address = jobs, address
        self.distributed = _needed("distributed", "dask")
        self.cluster: Any = None
        self.client: Any = None

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self._connect()
        waiting = list(jobs)
        first = waiting[: self.jobs or None]
        del waiting[: len(first)]
        run_of = dict(zip(self._submit(first), first, strict=True))
        done = self.distributed.as_completed(list(run_of))
        for future in done:
            try:
                yield future.result()
            except Exception as error:  # of the cluster, such as a worker that died: a job itself never raises
                job = run_of[future]
                yield Outcome(job.run, "failed", f"run {job.run.id}: Dask gave it up: {type(error).__name__}: {error}")
            if waiting:
                job = waiting.pop(0)
                (added,) = self._submit([job])
                run_of[added] = job
                done.add(added)

    def _connect(self) -> None:
        if self.client is None:
            if self.address is None:
                self.cluster = self.distributed.LocalCluster(
                    n_workers=self.jobs or cpu_count(), threads_per_worker=1, dashboard_address=":0"
                )
            self.client = self.distributed.Client(self.address or self.cluster, set_as_default=True)

    def _submit(self, jobs: Sequence[Job]) -> list[Any]:
        # Not pure: the same job again, after an interrupt, is no answer that is known.
        return [self.client.submit(_make, job, pure=False) for job in jobs]

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        for held in (self.client, self.cluster):
            if held is not None:
                held.close()


class Ray(Executor):
    """The workers of a Ray cluster.

    Args:
        jobs: how many runs at a time; 0: as many as the cluster has processors.
        folder: of the comparison.
        address: of the head, or `"auto"`; without it Ray is started on this machine.
    """

    def __init__(self, *, jobs: int, folder: Path, address: str | None = None) -> None:
        self.jobs, self.address = jobs, address
        self.ray = _needed("ray", "ray")

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        from ray.util.joblib import register_ray

        self.ray.init(address=self.address, ignore_reinit_error=True)
        register_ray()
        with parallel_config(backend="ray", n_jobs=self.jobs or -1):
            yield from Parallel(batch_size=1, return_as="generator_unordered")(delayed(_make)(job) for job in jobs)

    def close(self) -> None:
        """Leave the cluster."""
        self.ray.shutdown()


def _make(job: Job) -> Outcome:
    return job()


def _needed(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise ConfigError(
            f"--executor {extra} needs the package {module!r}. Install it with: pip install 'gradhomog[{extra}]'"
        ) from cause

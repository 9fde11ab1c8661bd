"""Executors for clusters of Dask and Ray. All machines share the folder of the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, cpu_count, delayed, parallel_config

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.executors.base import Executor
from gradhomog.experiments.execution.worker import Job, Outcome
from gradhomog.registry.specs import ExecutorSpec, hookimpl


class Dask(Executor):
    """Workers of a Dask cluster. A worker computes one run at a time, regardless of its number of threads.

    Args:
        jobs: number of runs at the same time; 0: as many as the cluster has workers.
        folder: folder of the comparison.
        address: address of the scheduler, `"tcp://head:8786"`; None starts workers with one thread each on this
            machine.
    """

    def __init__(self, *, jobs: int, folder: Path, address: str | None = None) -> None:
        self.jobs, self.address = jobs, address
        self.distributed = _import_package("distributed", "dask")
        self.cluster: Any = None
        self.client: Any = None

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self._connect()
        waiting = list(jobs)
        first = waiting[: self.jobs or None]
        del waiting[: len(first)]
        run_of = dict(zip(self._submit(first), first, strict=True))
        completed = self.distributed.as_completed(list(run_of))
        for future in completed:
            try:
                yield future.result()
            except Exception as error:  # an error of the cluster, such as a killed worker: a job itself never raises
                job = run_of[future]
                yield Outcome(job.run, "failed", f"run {job.run.id}: Dask failed: {type(error).__name__}: {error}")
            if waiting:
                job = waiting.pop(0)
                (added,) = self._submit([job])
                run_of[added] = job
                completed.add(added)

    def _connect(self) -> None:
        if self.client is None:
            if self.address is None:
                self.cluster = self.distributed.LocalCluster(
                    n_workers=self.jobs or cpu_count(), threads_per_worker=1, dashboard_address=":0"
                )
            self.client = self.distributed.Client(self.address or self.cluster, set_as_default=True)

    def _submit(self, jobs: Sequence[Job]) -> list[Any]:
        # Not pure: the same job after an interrupt must run again, not return a cached result.
        return [self.client.submit(_run_job, job, pure=False) for job in jobs]

    def close(self) -> None:
        """Disconnect from the cluster; shut it down if it was started here."""
        for resource in (self.client, self.cluster):
            if resource is not None:
                resource.close()


class Ray(Executor):
    """Workers of a Ray cluster, by joblib's backend for Ray.

    Args:
        jobs: number of runs at the same time; 0: one per processor of the cluster.
        folder: folder of the comparison.
        address: address of the head node, or `"auto"`; None starts Ray on this machine.
    """

    def __init__(self, *, jobs: int, folder: Path, address: str | None = None) -> None:
        self.jobs, self.address = jobs, address
        self.ray = _import_package("ray", "ray")

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        from ray.util.joblib import register_ray

        self.ray.init(address=self.address, ignore_reinit_error=True)
        register_ray()
        with parallel_config(backend="ray", n_jobs=self.jobs or -1):
            yield from Parallel(batch_size=1, return_as="generator_unordered")(delayed(_run_job)(job) for job in jobs)

    def close(self) -> None:
        """Disconnect from the cluster."""
        self.ray.shutdown()


def _run_job(job: Job) -> Outcome:
    return job()


def _import_package(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise ConfigError(
            f"--executor {extra} needs the package {module!r}. Install it with: pip install 'gradhomog[{extra}]'"
        ) from cause


@hookimpl
def gradhomog_executor(name: str) -> ExecutorSpec:
    """Describe the executors `dask` and `ray`."""
    return {
        "dask": ExecutorSpec(Dask, "the workers of a Dask cluster"),
        "ray": ExecutorSpec(Ray, "the workers of a Ray cluster"),
    }[name]

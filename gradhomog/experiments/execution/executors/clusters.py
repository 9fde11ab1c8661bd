"""Executors for clusters of Dask and Slurm. All machines share the folder of the comparison."""

import importlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from joblib import cpu_count

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.executors.local import as_they_end
from gradhomog.experiments.execution.worker import Executor, Job, Outcome


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
        if self.client is None:
            if self.address is None:
                self.cluster = self.distributed.LocalCluster(
                    n_workers=self.jobs or cpu_count(), threads_per_worker=1, dashboard_address=":0"
                )
            self.client = self.distributed.Client(self.address or self.cluster, set_as_default=True)
        # Not pure: the same job after an interrupt must run again, not return a cached result.
        pool, job_of = self.client.get_executor(pure=False), dict[Future[Outcome], Job]()

        def submit(job: Job) -> Future[Outcome]:
            future: Future[Outcome] = pool.submit(_run_job, job)
            job_of[future] = job
            return future

        for future in as_they_end(submit, jobs, self.jobs or len(jobs)):
            try:
                yield future.result()
            except Exception as error:  # an error of the cluster, such as a killed worker: a job itself never raises
                run = job_of[future].run
                yield Outcome(run, "failed", f"run {run.id}: Dask failed: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Disconnect from the cluster; shut it down if it was started here."""
        for resource in (self.client, self.cluster):
            if resource is not None:
                resource.close()


class Slurm(Executor):
    """One Slurm job per run.

    Args:
        jobs: number of runs at the same time; 0: as many as Slurm allows.
        folder: folder of the comparison; job logs are written to its subfolder `slurm`.
        cluster: `"slurm"`, or `"local"` for processes on this machine, to test without a cluster.
        options: options of submitit's `AutoExecutor.update_parameters`, such as `slurm_partition`, `timeout_min`,
            `mem_gb`.
    """

    def __init__(self, *, jobs: int, folder: Path, cluster: str = "slurm", **options: Any) -> None:
        self.jobs, submitit = jobs, _import_package("submitit", "slurm")
        try:
            self.submit = submitit.AutoExecutor(folder=folder / "slurm", cluster=cluster)
            limit = {"slurm_array_parallelism": jobs} if jobs else {}
            self.submit.update_parameters(name="gradhomog", **limit, **options)
        except (RuntimeError, NameError, TypeError, ValueError) as cause:
            raise ConfigError(f"--executor slurm: {cause}") from cause

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        with self.submit.batch():
            pending = [(job, self.submit.submit(job)) for job in jobs]
        while pending:
            remaining = []
            for job, submitted in pending:
                if job.stop.exists() and submitted.state == "PENDING":
                    submitted.cancel()
                    yield Outcome(job.run, "stopped")
                elif submitted.done():
                    error = submitted.exception()
                    failed = f"the job {submitted.job_id} of run {job.run.id} ended: {error}"
                    yield submitted.result() if error is None else Outcome(job.run, "failed", failed)
                else:
                    remaining.append((job, submitted))
            pending = remaining
            time.sleep(0.2)


def _run_job(job: Job) -> Outcome:
    return job()


def _import_package(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise ConfigError(
            f"--executor {extra} needs the package {module!r}. Install it with: pip install 'gradhomog[{extra}]'"
        ) from cause

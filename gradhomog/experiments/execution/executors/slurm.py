"""Executor for Slurm, by submitit. All nodes share the folder of the comparison."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.executors.base import Executor
from gradhomog.experiments.execution.worker import Job, Outcome
from gradhomog.registry.specs import ExecutorSpec, hookimpl


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
        self.jobs = jobs
        try:
            import submitit
        except ImportError as cause:
            raise ConfigError(
                "--executor slurm needs the package 'submitit'. Install it with: pip install 'gradhomog[slurm]'"
            ) from cause
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
                    yield _outcome(job, submitted)
                else:
                    remaining.append((job, submitted))
            pending = remaining
            time.sleep(0.2)


def _outcome(job: Job, submitted: Any) -> Outcome:
    error = submitted.exception()
    if error is None:
        outcome: Outcome = submitted.result()
        return outcome
    return Outcome(job.run, "failed", f"the job {submitted.job_id} of run {job.run.id} ended: {error}")


@hookimpl
def gradhomog_executor() -> ExecutorSpec:
    """Describe the executor."""
    return ExecutorSpec(Slurm, "one job of Slurm per run, by submitit", other_options=True)

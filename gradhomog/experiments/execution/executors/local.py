"""Runs on this machine: one after the other in this process, or in several worker processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from gradhomog.experiments.execution.executors.base import Executor
from gradhomog.experiments.execution.parent_watch import end_with_parent
from gradhomog.experiments.execution.worker import Job, Outcome
from gradhomog.experiments.results.comparison_dir import run_dir


class Local(Executor):
    """Processes of this machine by joblib's loky.

    Args:
        jobs: how many runs at a time; 1: one after the other in this process, 0: one per core.
        folder: of the comparison.
    """

    def __init__(self, *, jobs: int, folder: Path) -> None:
        self.jobs = jobs or cpu_count()
        self.pool: Any = None

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        at_a_time = min(self.jobs, len(jobs))
        if self.jobs == 1:
            return (job() for job in jobs)
        return self._in_processes([replace(job, jobs=at_a_time) for job in jobs], at_a_time)

    def _in_processes(self, jobs: Sequence[Job], at_a_time: int) -> Iterator[Outcome]:
        """As the processes give them. Where one dies (for memory, say), loky ends all: those that had begun then go on
        one at a time, so that it is known which of them it is, and the others as before."""
        left = {job.run.id: job for job in jobs}
        while left:
            try:
                for outcome in self._parallel(list(left.values()), at_a_time):
                    del left[outcome.run.id]
                    yield outcome
            except TerminatedWorkerError:
                for job in [job for job in left.values() if _has_begun(job)] or list(left.values()):
                    yield self._alone(left.pop(job.run.id))

    def _parallel(self, jobs: Sequence[Job], at_a_time: int) -> Iterator[Outcome]:
        with _interrupts_kept_from_children():
            self.pool = get_reusable_executor(
                max_workers=at_a_time, initializer=end_with_parent, initargs=(os.getpid(),)
            )
            pending = {self.pool.submit(job) for job in jobs}
            while pending:
                # With a timeout: a thread that waits without one is not woken by signals that another thread receives.
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)

    def _alone(self, job: Job) -> Outcome:
        try:
            (outcome,) = self._parallel([job], 1)
        except TerminatedWorkerError as error:
            code = str(error).rpartition("{")[2].rpartition("}")[0]
            hint = ", perhaps for memory" if "KILL" in code else ""
            return Outcome(job.run, "failed", f"the process of run {job.run.id} ended: {code}{hint}.")
        return outcome

    def close(self) -> None:
        """End the processes, also in the middle of a run."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, kill_workers=True)


def _has_begun(job: Job) -> bool:
    where = run_dir(job.folder, job.run)
    return where.config.exists() and where.result() is None


@contextmanager
def _interrupts_kept_from_children() -> Iterator[None]:
    """Within the context processes that start have SIGINT and SIGTERM blocked; this one has them in its other threads.

    A child that is interrupted while it starts would print a traceback; once it works it leaves interrupts to us.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

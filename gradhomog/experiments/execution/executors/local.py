"""Executor for this machine: runs in this process, or in several worker processes."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from gradhomog.experiments.execution.parent_watch import end_with_parent
from gradhomog.experiments.execution.worker import Executor, Job, Outcome
from gradhomog.experiments.results.comparison_dir import run_dir

Work = TypeVar("Work")
Result = TypeVar("Result")


def as_they_end(
    submit: Callable[[Work], Future[Result]], work: Iterable[Work], at_a_time: int
) -> Iterator[Future[Result]]:
    """Submit work, so much at a time that none waits in the pool, and yield the futures as they end."""
    waiting, pending = iter(work), set[Future[Result]]()
    while pending := pending | {submit(each) for each in islice(waiting, at_a_time - len(pending))}:
        # With a timeout: otherwise a signal that another thread receives does not wake this one.
        done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
        yield from done


class Processes:
    """Worker processes on this machine, by joblib's loky; those that still compute end with this process."""

    def __init__(self) -> None:
        self.pool: Any = None

    def run(self, calls: Sequence[Callable[[], Result]], at_a_time: int) -> Iterator[Result]:
        """Yield the results of calls as they end."""
        with _signals_blocked_in_children():
            self.pool = get_reusable_executor(
                max_workers=at_a_time, initializer=end_with_parent, initargs=(os.getpid(),)
            )
            # No call waits in the pool: loky prints a traceback if it is killed while one does.
            for future in as_they_end(self.pool.submit, calls, at_a_time):
                yield future.result()

    def close(self) -> None:
        """Kill the worker processes, even if they compute."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, kill_workers=True)


class Local(Executor):
    """Worker processes on this machine, by joblib's loky.

    Args:
        jobs: number of runs at the same time; 1: in this process, 0: one per core.
        folder: folder of the comparison.
    """

    def __init__(self, *, jobs: int, folder: Path) -> None:
        self.jobs = jobs or cpu_count()
        self.processes = Processes()

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        at_a_time = min(self.jobs, len(jobs))
        if self.jobs == 1:
            return (job() for job in jobs)
        return self._in_processes([replace(job, jobs=at_a_time) for job in jobs], at_a_time)

    def _in_processes(self, jobs: Sequence[Job], at_a_time: int) -> Iterator[Outcome]:
        """Yield outcomes as runs end. If one process is killed, for example out of memory, loky ends all of them. The
        runs that had started are then repeated one at a time, to identify the one that is killed; the others run as
        before."""
        remaining = {job.run.id: job for job in jobs}
        while remaining:
            try:
                for outcome in self.processes.run(list(remaining.values()), at_a_time):
                    del remaining[outcome.run.id]
                    yield outcome
            except TerminatedWorkerError:
                for job in [job for job in remaining.values() if _has_started(job)] or list(remaining.values()):
                    yield self._run_alone(remaining.pop(job.run.id))

    def _run_alone(self, job: Job) -> Outcome:
        try:
            (outcome,) = self.processes.run([job], 1)
        except TerminatedWorkerError as error:
            code = str(error).rpartition("{")[2].rpartition("}")[0]
            hint = ", possibly out of memory" if "KILL" in code else ""
            return Outcome(job.run, "failed", f"the process of run {job.run.id} ended: {code}{hint}.")
        return outcome

    def close(self) -> None:
        """Kill the worker processes, even if they compute a run."""
        self.processes.close()


def _has_started(job: Job) -> bool:
    folder = run_dir(job.folder, job.run)
    return folder.config.exists() and folder.result() is None


@contextmanager
def _signals_blocked_in_children() -> Iterator[None]:
    """Block SIGINT and SIGTERM in this thread: processes started within the context inherit the mask. Other threads of
    this process still receive the signals.

    A child that is interrupted while it starts would print a traceback. Later it ignores both, see `end_with_parent`.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

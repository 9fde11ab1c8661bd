"""Runs in parallel: one process per core, one thread per run, all records through the parent."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.execution.failures import reason
from gradhomog.experiments.execution.plan import Run
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.training.trainer import Training

Handle = Callable[[dict[str, Any]], list[Run]]
"""Called in the parent with every record; returns further runs to be made (after a tuning is decided)."""


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def number(config: Config, runs: int) -> int:
    """How many of so many runs are made at a time."""
    return min(config.workers or available_cores(), max(runs, 1))


def execute(config: Config, runs: list[Run], folder: Path, handle: Handle) -> None:
    """Make all runs, each in `folder/runs/<id>`; records reach `handle` as they come.

    A run that fails is told as `{"event": "failed", ...}` and the others go on. On an interrupt (KeyboardInterrupt)
    every run in progress writes a checkpoint before this returns by raising it again.
    """
    workers = config.workers or number(config, len(runs))
    pending = deque(runs)
    if workers == 1:
        _serial(config, pending, folder, handle)
    else:
        _Pool(config, pending, folder, handle).run(workers)


def _serial(config: Config, pending: deque[Run], folder: Path, handle: Handle) -> None:
    stopping = False

    def interrupt(*_: Any) -> None:
        nonlocal stopping
        stopping = True

    def emit(record: dict[str, Any]) -> None:
        pending.extend(handle(record))

    with _on_interrupt(interrupt), threads(config.threads):
        while pending:
            _make(config, pending.popleft(), folder, emit, lambda: stopping)
            if stopping:
                raise KeyboardInterrupt


def _make(
    config: Config, run: Run, folder: Path, emit: Callable[[dict[str, Any]], None], stop: Callable[[], bool]
) -> None:
    """One run to its end, or to its failure as a record."""
    try:
        of_run = {"label": run.label, "learner": run.learner, "seed": run.seed}
        training = Training(config, run, folder / "runs" / run.id, emit)
        training.finish(stop, lambda record: emit({"event": "progress", **of_run, **record}))
    except Exception as error:
        emit(_failure(run, reason(config, run, error)))


def _failure(run: Run, error: str) -> dict[str, Any]:
    """The record of a run that failed; it says which run as the record `result` does."""
    return {
        "event": "failed", "run": run.id, "label": run.label, "learner": run.learner, "seed": run.seed,
        "role": run.role, "error": error,
    }  # fmt: skip


class _Pool:
    def __init__(self, config: Config, pending: deque[Run], folder: Path, handle: Handle) -> None:
        self.config, self.pending, self.folder, self.handle = config, pending, folder, handle
        # spawn, not fork: forked children of a process with torch threads can hang.
        self.context = multiprocessing.get_context("spawn")
        self.stop = self.context.Event()
        self.workers: dict[Any, tuple[Any, Run | None]] = {}
        self.last_exit: int | None = None

    def run(self, count: int) -> None:
        interrupted = False

        def interrupt(*_: Any) -> None:
            nonlocal interrupted
            interrupted = True
            self.stop.set()

        try:
            with _on_interrupt(interrupt):
                for _ in range(min(count, max(len(self.pending), 1))):
                    self._start()
                while self.workers:
                    for connection in multiprocessing.connection.wait(list(self.workers), timeout=0.5):
                        self._receive(connection, interrupted)
        finally:
            for process, _run in self.workers.values():
                process.kill()
        if interrupted:
            raise KeyboardInterrupt
        for run in self.pending:  # every worker died before it could take a run
            self._failed(
                run,
                f"no worker process could start (exit code {self.last_exit}). A script that calls compare() needs "
                '`if __name__ == "__main__":` around it, or workers=1.',
            )

    def _failed(self, run: Run, why: str) -> None:
        self.handle(_failure(run, why))

    def _start(self) -> None:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, self.stop, self.config, self.folder), daemon=True)
        # The child must not die of an interrupt that is meant for us; what is ignored here stays ignored in it.
        with _on_interrupt(signal.SIG_IGN):
            process.start()
        theirs.close()
        self.workers[ours] = (process, None)

    def _receive(self, connection: Any, interrupted: bool) -> None:
        process, run = self.workers[connection]
        try:
            record = connection.recv()
        except (EOFError, ConnectionResetError):
            del self.workers[connection]
            process.join()
            self.last_exit = process.exitcode
            if run is not None:
                hint = ": killed, perhaps for memory" if process.exitcode == -signal.SIGKILL else ""
                self._failed(run, f"the process of run {run.id} ended with exit code {process.exitcode}{hint}.")
                if self.pending and not interrupted:
                    self._start()
            return
        if record is not None:
            self.pending.extend(self.handle(record))
            return
        # None: the worker is free.
        following = None if interrupted or not self.pending else self.pending.popleft()
        busy = any(other is not None for key, (_, other) in self.workers.items() if key is not connection)
        if following is None and busy and not interrupted:
            # A tuning that is still running may bring further runs: ask again in a moment.
            self.workers[connection] = (process, None)
            connection.send("wait")
            return
        self.workers[connection] = (process, following)
        connection.send(following)


def _work(connection: Any, stop: Any, config: Config, folder: Path) -> None:
    """A worker's life: ask for a run, make it, ask again, until there is none.

    It was started with SIGINT and SIGTERM ignored: the parent is interrupted, and says so through `stop`.
    """
    torch.set_num_threads(config.threads)
    try:
        while True:
            connection.send(None)
            run = connection.recv()
            if run is None:
                return
            if run == "wait":
                stop.wait(0.2)
                continue
            _make(config, run, folder, connection.send, stop.is_set)
    except (BrokenPipeError, EOFError, ConnectionResetError):
        return  # the parent is gone; the last checkpoint is on disk


@contextmanager
def _on_interrupt(handler: Any) -> Iterator[None]:
    """Within the context SIGINT and SIGTERM call the handler (or are ignored), where the thread may set one."""
    names = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(name, handler) for name in names]
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for name, was in zip(names, before, strict=True):
            signal.signal(name, was)

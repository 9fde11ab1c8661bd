"""The base class of executors, and executors by name.

An executor is called with jobs and yields one outcome per job, in any order. Results do not depend on the executor:
a run is a function of its configuration and writes only its own folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

from gradhomog.experiments.execution.worker import Job, Outcome
from gradhomog.registry import expression, installed


class Executor(ABC):
    """Compute jobs: called with a list of jobs, yields one outcome per job, in any order. Can be called repeatedly.

    A context manager: resources that are kept between calls, such as processes, are released at its end.

    Attributes:
        jobs: number of runs at the same time; 0: as many as possible.
    """

    jobs: int

    @abstractmethod
    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]: ...

    def close(self) -> None:  # noqa: B027  Slurm's executor has nothing to release
        """Release processes and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


def make_executor(text: str, jobs: int, folder: Path) -> Executor:
    """Return an executor from its text, such as `"local"`, `'dask(address="tcp://head:8786")'` or
    `'slurm(slurm_partition="cpu", timeout_min=60)'`.

    Args:
        text: the name of a plugin of the group `gradhomog.executors`, with its options.
        jobs: number of runs at the same time; 0: one per core, or as many as the cluster accepts.
        folder: folder of the comparison; all machines share it.

    Raises:
        UnknownPluginError, OptionError: the name or an option is unknown. ExpressionError: the text does not parse.
        ConfigError: a package is missing.
    """
    name, options = expression.parse_one(text)
    info, _, made = installed().make("executors", name, options, jobs=jobs, folder=folder)
    executor: Executor = info.checked(made, Executor, home="gradhomog.experiments")
    return executor

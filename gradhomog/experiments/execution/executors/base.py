"""The base class of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

from gradhomog.experiments.execution.worker import Job, Outcome


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

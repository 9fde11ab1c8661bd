"""The base class of executors: called with jobs, gives their outcomes, and ends what it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

from gradhomog.experiments.execution.worker import Job, Outcome


class Executor(ABC):
    """Called with jobs as often as there are some; gives an outcome for each of them, in any order.

    A context manager: what it holds between calls, such as processes, ends with the context.

    Attributes:
        jobs: how many runs at a time; 0: as many as there is room for.
    """

    jobs: int

    @abstractmethod
    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]: ...

    def close(self) -> None:  # noqa: B027  Slurm's holds nothing
        """End what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

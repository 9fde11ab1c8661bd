"""What a worker process does: one run, to its end or as far as it may."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradhomog.experiments.config import pins
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.execution import observers
from gradhomog.experiments.execution.failures import reason
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.results.comparison_dir import run_dir
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.training.trainer import Trainer

# Global generators, the number of threads and the processor's clock are those of the process: where a cluster gives a
# worker several threads, its runs take turns.
_one_at_a_time = threading.Lock()

Status = Literal["finished", "stopped", "failed", "held"]


@dataclass(frozen=True)
class Outcome:
    """What became of a run: `"stopped"` on request, `"held"` by another process, or `"failed"` with an error."""

    run: Run
    status: Status
    error: str = ""


@dataclass(frozen=True)
class Job:
    """One run, as it is sent to a worker, perhaps on another machine that shares the folder.

    Attributes:
        stop: a file; when it appears, the run writes a checkpoint and stops.
    """

    config: Config
    run: Run
    folder: Path
    stop: Path
    jobs: int = 1

    def __call__(self) -> Outcome:
        """Make the run. Never raises but for interrupts: an error is told by the outcome, and in the run's events."""
        with _one_at_a_time:
            return Outcome(self.run, "stopped") if self.stop.exists() else self._make()

    def _make(self) -> Outcome:
        where = run_dir(self.folder, self.run)
        trainer: Trainer | None = None
        try:
            if not self.folder.exists():
                raise FileNotFoundError(f"{self.folder} is not there; all machines must share it")
            with where.lock() as held:
                if not held:
                    return Outcome(self.run, "held")
                if where.result() is not None:
                    return Outcome(self.run, "finished")
                with threads(self.config.threads), pins.using(self.own) as own:
                    try:
                        trainer = Trainer(own, self.run, where, observers.make(own, where.path, _warn), self.jobs)
                        return Outcome(self.run, "finished" if trainer.finish(self.stop.exists) else "stopped")
                    except Exception as error:
                        why = reason(self.config, self.run, error)
                        if trainer is not None:
                            with suppress(OSError):  # a full disk
                                trainer.fail(why)
                        return Outcome(self.run, "failed", why)
        except Exception as error:  # nothing can be written: a full disk, a folder that is gone
            return Outcome(self.run, "failed", reason(self.config, self.run, error))

    def checkpoint(self) -> Any:
        """For submitit, when the time of a Slurm job is over: the job again, which goes on from its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    @property
    def own(self) -> Config:
        """The configuration of this run alone."""
        return self.config.of_run(self.run.learner, self.run.homogenizers, self.run.seed)


def _warn(text: str) -> None:
    print(text, file=sys.stderr)

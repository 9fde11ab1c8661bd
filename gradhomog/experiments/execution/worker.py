"""Jobs, each of which computes one run until it finishes, fails or is stopped, and the base class of executors.

An executor is called with jobs and yields one outcome per job, in any order. Results do not depend on the executor:
a run is a function of its configuration and writes only its own folder.
"""

import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradhomog.errors import GradhomogError, describe_error, raised_in_package
from gradhomog.experiments.environment import threads
from gradhomog.experiments.execution import observers
from gradhomog.experiments.results.comparison_dir import run_dir
from gradhomog.experiments.run_file import pins
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import Trainer
from gradhomog.learners.domains import domain_plugin
from gradhomog.ranks.communicator import Ranks
from gradhomog.registry import expression, installed
from gradhomog.registry.options import ValidatedConstructor
from gradhomog.registry.specs import PluginInfo
from gradhomog.terminal import escaped_output


def describe_failure(config: Config, run: Run, error: Exception) -> str:
    """Return the error as one line, with the learner, domain or problem that raised it, followed by the traceback.

    An error of gradhomog already names the plugin and is not a defect: it is returned without traceback.
    """
    if isinstance(error, GradhomogError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error}. Completed runs and checkpoints are kept: fix the cause, then continue with --resume."
    third_party = [info for info in _plugins(config, run) if info.distribution != "gradhomog"]
    author = next((info for info in third_party if raised_in_package(error, info.module)), None)
    line = f"{author} raised {describe_error(error)} {author.advice}" if author else describe_error(error)
    return f"{line}\n\n{''.join(traceback.format_exception(error))}"


def _plugins(config: Config, run: Run) -> list[PluginInfo]:
    if config.problem is not None:
        return [installed().find("problems", config.problem["name"])]
    domains = dict.fromkeys(domain_plugin(text) for text in (*config.domains.train, *config.domains.test))
    return [
        *(installed().find("domains", selector) for selector in domains),
        installed().find("learners", expression.parse_one(run.learner)[0]),
    ]


# Global generators, the number of threads and the processor time belong to the process. If a cluster gives a worker
# several threads, its runs therefore take turns.
_one_at_a_time = threading.Lock()

Status = Literal["finished", "stopped", "failed", "locked"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: `"finished"`, `"stopped"` on request, `"locked"` by another process, or `"failed"` with an
    error."""

    run: Run
    status: Status
    error: str = ""


@dataclass(frozen=True)
class Job:
    """One run to compute, sent to a worker, possibly on another machine that shares the folder.

    Attributes:
        config: configuration of the comparison.
        folder: folder of the comparison.
        stop: path of the stop file; once it exists, the run writes a checkpoint and stops.
        jobs: number of runs that are computed at the same time; recorded only.
    """

    config: Config
    run: Run
    folder: Path
    stop: Path
    jobs: int = 1

    def __call__(self) -> Outcome:
        """Compute the run. Raises nothing but interrupts: an error is in the outcome and in the events of the run."""
        with _one_at_a_time, escaped_output():
            return Outcome(self.run, "stopped") if self.stop.exists() else self._compute()

    def _compute(self) -> Outcome:
        folder = run_dir(self.folder, self.run)
        trainer: Trainer | None = None
        try:
            if not self.folder.exists():
                raise FileNotFoundError(f"{self.folder} does not exist; all machines must share it")
            with folder.lock() as acquired:
                if not acquired:
                    return Outcome(self.run, "locked")
                if folder.result() is not None:
                    return Outcome(self.run, "finished")
                with threads(self.config.threads), pins.use_pinned_plugins(self.config.for_run(self.run)) as config:
                    try:
                        trainer = Trainer(config, self.run, folder, observers.make(config, folder.path), self.jobs)
                        return Outcome(self.run, "finished" if trainer.train_and_test(self.stop.exists) else "stopped")
                    except Exception as error:
                        message = describe_failure(self.config, self.run, error)
                        if trainer is not None:
                            with suppress(OSError):  # a full disk
                                if Ranks().size > 1:
                                    trainer.save()  # another rank ended in an exchange, which changes nothing
                                trainer.fail(message)
                        return Outcome(self.run, "failed", message)
        except Exception as error:  # the folder cannot be written: the disk is full, or the folder was deleted
            return Outcome(self.run, "failed", describe_failure(self.config, self.run, error))

    def checkpoint(self) -> Any:
        """Resubmit the job: submitit calls this at the time limit of Slurm. The run continues from its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Executor(ValidatedConstructor, ABC):
    """Compute jobs: called with a list of jobs, yields one outcome per job, in any order. Can be called repeatedly.

    Resources that are kept between calls, such as processes, are released by `close`.

    Attributes:
        jobs: number of runs at the same time; 0: as many as possible.
    """

    jobs: int

    @abstractmethod
    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]: ...

    def close(self) -> None:
        """Release processes and connections."""

"""A comparison from configuration to table: plans runs, starts those that have no result, and reads their folders."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.config import pins
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.execution import observers, plan
from gradhomog.experiments.execution.executors import executor as find_executor
from gradhomog.experiments.execution.executors.base import Executor
from gradhomog.experiments.execution.interrupts import StopFile
from gradhomog.experiments.execution.monitor import Monitor, Progress
from gradhomog.experiments.execution.worker import Job, Outcome
from gradhomog.experiments.report.page import write_report
from gradhomog.experiments.results import comparison_dir
from gradhomog.experiments.results.comparison_dir import Plan, run_dir
from gradhomog.experiments.results.plan import Method, Run, runs
from gradhomog.experiments.training import trainer
from gradhomog.experiments.training.dry_run import dry_run


@dataclass
class Comparison:
    """What a comparison came to.

    Attributes:
        folder: where everything was written.
        summary: the table.
        failures: by run, the message of what failed; empty if all went well.
    """

    folder: Path
    summary: Any
    failures: dict[str, str] = field(default_factory=dict)


def compare(
    config: Config,
    out: Path | None = None,
    resume: bool = False,
    progress: Progress = lambda record: None,
    stem: str = "compare",
    jobs: int = 1,
    executor: str = "local",
) -> Comparison:
    """Train and test every method with every seed; see `Config`.

    Everything is checked before anything is trained, and two steps of each method are tried. Every run has a folder of
    its own under `out/runs`, see `RunDir`. Several processes, also on several machines, may resume one comparison at
    the same time: no run is made twice.

    Args:
        out: the output folder; by default a new one under `runs/`.
        resume: go on where a killed or interrupted comparison of this configuration stopped, or is going on elsewhere.
        progress: called with records `dry_run`, `plan`, `progress`, `result` and `failed`; for a progress bar.
        jobs: how many runs are made at a time; 1: in this process, 0: one per core.
        executor: where runs are made, see `executors`. Results do not depend on it.

    Raises:
        GradhomogError: bad names, options, data or folder, or methods that cannot work with these. KeyboardInterrupt:
            after all runs have written checkpoints.
    """
    folder = comparison_dir.choose(config, out, resume, stem)
    with pins.using(comparison_dir.with_pins(config, folder)) as pinned:
        return _compare(pinned, folder, resume, progress, jobs, executor)


def _compare(config: Config, out: Path, resume: bool, progress: Progress, jobs: int, executor: str) -> Comparison:
    rows = plan.methods(config)
    observers.check(config)
    about: dict[str, Any] = {}
    for learner in config.learners:
        about = trainer.trainable(config, Run(learner, "none", config.seed_list[0])).about()
    seconds = None
    if not resume:  # what has begun was tried then, and without one of its methods would be another comparison
        seconds = dry_run(config, rows, progress).seconds
    path = comparison_dir.prepare(config, out)
    made = Plan(config.to_dict(), config.digest, tuple(rows), tuple(config.seed_list), about)
    made.write(path)
    runner = _Runner(config, rows, path, progress)
    with find_executor(executor, jobs, path) as make:
        runner.make_all(make, seconds)
    return Comparison(path, write_report(path), runner.failures)


class _Runner:
    def __init__(self, config: Config, rows: list[Method], path: Path, progress: Progress) -> None:
        self.config, self.rows, self.path, self.progress = config, rows, path, progress
        self.results: dict[str, Any] = {}
        self.failures: dict[str, str] = {}
        self.stop = StopFile(path)
        self.monitor = Monitor(path, progress)

    def make_all(self, executor: Executor, seconds: float | None) -> None:
        """Make every run that has no result, until there is none left."""
        seeds = self.config.seed_list
        for run in {Run(row.learner, text, seed) for row in self.rows for text in row.candidates for seed in seeds}:
            self._look(run)
        tuned = [row for row in self.rows if row.tuned]
        count = len(self.rows) * len(seeds) + sum(len(row.candidates) - 1 for row in tuned)
        self.progress(
            {
                "event": "plan", "learners": self.config.learners, "runs": count, "steps": self.config.train.steps,
                "finished": len(self.results), "seconds": seconds, "jobs": executor.jobs,
            }
        )  # fmt: skip
        with self.monitor.watching(), self.stop.on_interrupt():
            while pending := self._pending():
                self.monitor.runs = pending
                held = self._make(executor, pending)
                if self.stop.asked:
                    raise KeyboardInterrupt
                if len(held) == len(pending):  # all that is left is being made by others
                    time.sleep(1.0)
                for run in held:
                    self._look(run)

    def _pending(self) -> list[Run]:
        done = {**self.results, **self.failures}
        decided = runs(self.rows, self.config.seed_list, self.results, self.failures)
        return [run for run in decided if run.id not in done]

    def _look(self, run: Run) -> None:
        result = run_dir(self.path, run).result()
        if result is not None:
            self.results[run.id] = result

    def _make(self, executor: Executor, pending: list[Run]) -> list[Run]:
        """Make runs; returns those that other processes are making."""
        held = []
        for outcome in executor([Job(self.config, run, self.path, self.stop.path) for run in pending]):
            self._take(outcome)
            if outcome.status == "held":
                held.append(outcome.run)
            if self.stop.asked and outcome.status == "stopped" and executor.jobs == 1:
                break
        return held

    def _take(self, outcome: Outcome) -> None:
        run = outcome.run
        if outcome.status == "failed":
            if not (self.path / comparison_dir.PLAN).exists():  # other runs would make the folder again, without it
                raise ConfigError(
                    f"{self.path} was removed while runs trained. Run the command again, without --resume."
                )
            self.failures[run.id] = outcome.error
            self.progress({"event": "failed", **run.identity, "error": outcome.error})
        elif outcome.status == "finished":
            self._look(run)
            self.progress(self.results[run.id])

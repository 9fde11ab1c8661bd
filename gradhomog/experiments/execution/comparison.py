"""Comparisons, from configuration to table: dry run, plan, runs without a result, report."""

import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments.environment import threads
from gradhomog.experiments.execution import observers
from gradhomog.experiments.execution.executors import make_executor
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.execution.worker import Executor, Job
from gradhomog.experiments.report.page import write_report
from gradhomog.experiments.results import comparison_dir, events
from gradhomog.experiments.results.comparison_dir import Plan, run_dir
from gradhomog.experiments.run_file import pins
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.runs import Method, Run, decided_runs
from gradhomog.experiments.training import trainer

Progress = Callable[[Mapping[str, Any]], None]

INTERVAL = 0.5
"""Seconds between two reports of running runs."""


@dataclass
class ComparisonResult:
    """The outcome of a comparison.

    Attributes:
        folder: the output folder.
        summary: the table.
        failures: error messages by `Run.id`; empty if no run failed.
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
) -> ComparisonResult:
    """Train and test every method with every seed; see `Config`.

    The configuration is validated, and a dry run takes two steps of each method, before the first training starts.
    Every run has a separate folder under `out/runs`, see `RunDir`. Several processes, also on several machines, may
    resume one comparison at the same time: each run is computed by one of them.

    Args:
        out: the output folder; by default a new one under `runs/`.
        resume: continue a comparison of this configuration that was killed or interrupted, or that is still running
            in another process.
        progress: called with the records `dry_run`, `plan`, `progress`, `result` and `failed`; for a progress bar.
        jobs: number of runs at the same time; 1: in this process, 0: one per core.
        executor: where runs are computed, see `make_executor`. Results do not depend on it.

    Raises:
        GradhomogError: names, options, data or folder are invalid, or the dry run of a method fails.
        KeyboardInterrupt: after all runs have written checkpoints.
    """
    folder = comparison_dir.choose_folder(config, out, resume, stem)
    with pins.use_pinned_plugins(comparison_dir.with_pins(config, folder)) as pinned:
        rows = make_methods(pinned)
        observers.check(pinned)
        run_executor = make_executor(executor, jobs, folder)
        plan = make_plan(pinned)
        if not resume:  # the dry run was done at the first start; a comparison with fewer methods would be another one
            dry_run(pinned, rows, progress)
        folder.mkdir(parents=True, exist_ok=True)
        with comparison_dir.lock(folder):  # of processes that start at the same moment, one writes the plan
            comparison_dir.create_folder(pinned, folder)
            plan.write(folder)
        runner = _Runner(pinned, plan, folder, progress)
        with closing(run_executor):
            runner.compute_all(run_executor)
        return ComparisonResult(folder, write_report(folder), runner.failures)


def make_plan(config: Config) -> Plan:
    """Return the plan of a comparison, after opening its data and constructing each learner once.

    Raises:
        GradhomogError: names, options or data are invalid.
    """
    metadata: dict[str, Any] = {}
    for learner in config.learners:
        metadata = trainer.make_trainable(config, Run(learner, "none", config.seed_list[0])).metadata()
    return Plan(config.to_dict(), config.digest, make_methods(config), config.seed_list, metadata)


def dry_run(config: Config, rows: Sequence[Method], progress: Progress = lambda record: None) -> None:
    """Take the first two steps of every pipeline of a comparison, each on a new trainable that is then discarded.

    A homogenizer checks its requirements on the network, its features and its losses only within a step. Writes no
    file. Calls `progress` after each pipeline with the record `dry_run`.

    Raises:
        ConfigError: a step raises an error of gradhomog; lists all such pipelines, with the reasons.
    """
    failures: dict[str, list[str]] = {}  # reason -> pipelines: several pipelines may fail for the same reason
    runs = dict.fromkeys(Run(row.learner, text, config.seed_list[0]) for row in rows for text in row.candidates)
    with threads(config.threads):
        for run in runs:
            # Any other exception is a defect in a plugin. The run itself reports it, with plugin and traceback.
            with suppress(Exception):
                try:
                    trainable = trainer.make_trainable(config, run)
                    optimizer = trainer.make_optimizer(config, trainable)
                    for step in range(2):
                        trainable.step(step, optimizer, inspect=step == 0)
                except GradhomogError as error:
                    name = f"{run.learner} with {run.homogenizers}" if len(config.learners) > 1 else run.homogenizers
                    failures.setdefault(str(error), []).append(name)
            progress({"event": "dry_run", "run": run.id, "of": len(runs)})
    if failures:
        raise ConfigError(_message(config, failures))


def _message(config: Config, failures: Mapping[str, Sequence[str]]) -> str:
    subject, alternative = ", ".join(config.learners), "another learner, network or domains"
    if config.problem is not None:
        subject, alternative = f"the problem {config.problem['name']}", "another `problem.name`"
    lines = [f"`homogenizers`: the dry run of these with {subject} failed, and nothing was started."]
    for reason, names in failures.items():
        lines += [f"  {', '.join(names)}", textwrap.indent(reason, "    ")]
    return "\n".join([*lines, f"Follow each message, remove these from `homogenizers`, or choose {alternative}."])


class _Runner:
    def __init__(self, config: Config, planned: Plan, path: Path, progress: Progress) -> None:
        self.config, self.plan, self.path, self.progress = config, planned, path, progress
        self.results: dict[str, Any] = {}
        self.failures: dict[str, str] = {}
        self.polled: Sequence[Run] = ()
        self.sizes: dict[str, int] = {}  # of the events of a run, when they were read last

    def compute_all(self, executor: Executor) -> None:
        """Compute the runs that have no result until all runs have finished or failed."""
        for run in self.plan.runs:
            self._load_result(run)
        count = sum(len(self.plan.seeds) + len(row.candidates) - 1 for row in self.plan.methods)
        self.progress(
            {
                "event": "plan", "learners": self.config.learners, "runs": count, "steps": self.config.train.steps,
                "finished": len(self.results), "jobs": executor.jobs,
            }
        )  # fmt: skip
        with self._reporting_steps(), _stop_file(self.path) as stop:
            while pending := self._pending():
                self.polled = pending
                free = [run for run in pending if not run_dir(self.path, run).is_locked()]
                if free:
                    self._compute(executor, free, stop)
                else:  # other processes compute all remaining runs
                    time.sleep(1.0)
                if stop.exists():
                    raise KeyboardInterrupt
                for run in pending:
                    self._load_result(run)

    def _pending(self) -> list[Run]:
        done = {**self.results, **self.failures}
        decided = decided_runs(self.plan.methods, self.plan.seeds, self.results, self.failures)
        return [run for run in decided if run.id not in done]

    def _load_result(self, run: Run) -> None:
        if (result := self.plan.read_result(self.path, run)) is not None:
            self.results[run.id] = result

    def _compute(self, executor: Executor, pending: list[Run], stop: Path) -> None:
        folder, stop = self.path.resolve(), stop.resolve()  # workers may have another working directory
        for outcome in executor([Job(self.config, run, folder, stop) for run in pending]):
            if outcome.status == "failed":
                self._record_failure(outcome.run, outcome.error)
            elif outcome.status == "finished":
                self._load_result(outcome.run)
                if result := self.results.get(outcome.run.id):  # a network file system may be delayed
                    self.progress(result)

    def _record_failure(self, run: Run, error: str) -> None:
        if not (self.path / comparison_dir.PLAN).exists():  # other runs would create the folder again, without the plan
            raise ConfigError(f"{self.path} was removed while runs trained. Run the command again, without --resume.")
        with suppress(OSError):  # a full disk
            run_dir(self.path, run).record_failure(error)  # a killed process has not recorded it
        self.failures[run.id] = error
        self.progress({"event": "failed", **run.identity, "error": error})

    @contextmanager
    def _reporting_steps(self) -> Iterator[None]:
        """Report the last event of each run every half second within the context, wherever the runs are computed."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(INTERVAL):
                self._report_steps()

        thread = threading.Thread(target=watch, name="gradhomog-monitor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _report_steps(self) -> None:
        """Report each new last event `step` (or `start`) of a run, with `Run.identity`, as a record `progress`."""
        for run in self.polled:
            path = run_dir(self.path, run).events
            try:
                size = path.stat().st_size
                if size == self.sizes.get(run.id):
                    continue
                self.sizes[run.id] = size
                steps = [event for event in events.read_tail(path) if event["event"] in ("step", "start")]
            except (OSError, ConfigError):  # missing as yet, or damaged: its process, or the report, raises the error
                continue
            if steps:
                self.progress({**steps[-1], **run.identity, "event": "progress"})


@contextmanager
def _stop_file(folder: Path) -> Iterator[Path]:
    """Yield the path of a file whose existence makes all runs of one invocation stop, also on other machines.

    SIGINT and SIGTERM create the file within the context; it is removed at the end.
    """
    path = folder / f".stop-{uuid4().hex}"
    names = (signal.SIGINT, signal.SIGTERM)
    before: list[Any] = []
    try:
        with suppress(ValueError):  # only the main thread can set signal handlers
            before = [signal.signal(name, lambda *_: path.touch()) for name in names]
        yield path
    finally:
        for name, previous in zip(names, before, strict=False):
            signal.signal(name, previous)
        path.unlink(missing_ok=True)

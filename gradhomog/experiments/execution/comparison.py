"""A comparison from configuration to table: plans the runs, keeps their records, decides tunings, writes the report."""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.execution import executor, plan
from gradhomog.experiments.execution.environment import machine, versions
from gradhomog.experiments.execution.plan import Method, Run
from gradhomog.experiments.report.page import write_report
from gradhomog.experiments.results import run_dir as folders
from gradhomog.experiments.results.events import PLAIN, ResultLog
from gradhomog.experiments.training import dry_run, trainer
from gradhomog.registry import installed

KEPT = frozenset({"step", "probe", "validation", "result", "failed"})


@dataclass
class Outcome:
    """What a comparison came to.

    Attributes:
        folder: where everything was written.
        summary: the table.
        failures: by run, the message of what failed; empty if all went well.
    """

    folder: Path
    summary: Summary
    failures: dict[str, str] = field(default_factory=dict)


def compare(
    config: Config,
    out: Path | None = None,
    resume: bool = False,
    progress: Callable[[Mapping[str, Any]], None] = lambda record: None,
    stem: str = "compare",
) -> Outcome:
    """Train and test every method with every seed; see `Config`.

    Everything is checked before anything is trained, and one step of each method is tried.

    Args:
        out: the output folder; by default a new one under `runs/`.
        resume: go on where a killed or interrupted comparison of this configuration stopped.
        progress: called with every record, `trial`, `plan` and `progress` included; for a progress bar.

    Raises:
        GradhomogError: bad names, options, data or folder, or methods that cannot work with these. KeyboardInterrupt:
            after all runs have written checkpoints.
    """
    rows = plan.methods(config)
    folders.choose(config, out, resume, stem)  # a folder that is refused is refused before what takes longer
    about: dict[str, Any] = {}
    for learner in config.learners:  # `methods` has made the pipelines
        about = trainer.trainee(config, Run(learner, PLAIN, "none", config.seed_list[0])).about()
    if not resume:  # what has begun was tried then, and without one of its methods would be another comparison
        dry_run.refuse_unworkable(config, rows, progress)
    path = folders.prepare(config, out, resume, stem)
    with folders.locked(path):
        comparison = _Comparison(config, rows, about, path, progress)
        comparison.run()
        return Outcome(path, write_report(path, expected_runs=comparison.expected), comparison.failures)


class _Comparison:
    def __init__(
        self,
        config: Config,
        rows: list[Method],
        about: Mapping[str, Any],
        path: Path,
        progress: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.config, self.rows, self.about, self.path, self.progress = config, rows, about, path, progress
        ResultLog.recover(path / folders.LOG)
        self.log = ResultLog(path / folders.LOG)
        self.results: dict[tuple[str, str], dict[str, Any]] = {}
        for record in ResultLog.read(path / folders.LOG):
            if record["event"] == "start":
                self._check_same(record)
            if record["event"] == "result":
                self.results[record["run"], record["role"]] = record
        self.failures: dict[str, str] = {}
        self.expected = len(rows) * len(config.seed_list)
        self._observers = installed().observers(config.to_dict(), report=lambda text: print(text, file=sys.stderr))

    def _check_same(self, start: Mapping[str, Any]) -> None:
        """Refuse to go on with results of another configuration or other data; the run file may have been edited."""
        now = {"digest": self.config.digest, "fingerprint": self.about.get("fingerprint")}
        what = {"digest": "configuration", "fingerprint": "data (the file has changed)"}
        for key, value in now.items():
            if start.get(key, value) != value:  # older logs do not tell
                raise ConfigError(
                    f"{self.path} holds results of another {what[key]}, made at {start['time']}, which one table must "
                    "not mix with these. Choose another --out."
                )

    def run(self) -> None:
        runs = [run for run in plan.first_runs(self.config, self.rows) if (run.id, run.role) not in self.results]
        for row in self.rows:  # tunings that were decided before an interruption
            runs += self._decide(row)
        candidates = sum(len(row.candidates) - 1 for row in self.rows if row.tuned)
        finished = sum(
            1 for (_, role), record in self.results.items() if role == "candidate" or not record.get("tuned_from")
        )
        self.progress(
            {
                "event": "plan",
                "learners": self.config.learners,
                "runs": self.expected + candidates,
                "steps": self.config.train.steps,
                "finished": min(finished, self.expected + candidates),
            }
        )
        self._append(
            {
                "event": "start",
                "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "config": self.config.to_dict(),
                "digest": self.config.digest,
                "rows": [{"learner": row.learner, "label": row.label} for row in self.rows],
                **self.about,
                "versions": {**versions(), **plan.distributions(self.config, self.rows)},
                "machine": machine(),
                "workers": executor.number(self.config, len(runs)),
            }
        )
        executor.execute(self.config, runs, self.path, self._handle)

    def _handle(self, record: dict[str, Any]) -> list[Run]:
        self.progress(record)
        if record["event"] == "failed":
            self.failures[record["run"]] = record["error"]
        if record["event"] not in KEPT:
            return []
        row = next(row for row in self.rows if (row.learner, row.label) == (record["learner"], record["label"]))
        if row.tuned and record["event"] == "result" and record["role"] == "compare":
            record = {**record, "tuned_from": list(row.candidates), "chosen": record["homogenizers"]}
        self._append(record)
        if record["event"] == "result":
            self.results[record["run"], record["role"]] = record
            trainer.forget_checkpoint(self.path / "runs" / record["run"])  # the result is on disk
        return self._decide(row) if record.get("role") == "candidate" else []

    def _decide(self, row: Method) -> list[Run]:
        """A tuned method's runs once its candidates are known; that of the first seed is the chosen candidate's."""
        if not row.tuned:
            return []
        seed = self.config.seed_list[0]
        ids = [Run(row.learner, row.label, text, seed, "candidate").id for text in row.candidates]
        done = [self.results[id, "candidate"] for id in ids if (id, "candidate") in self.results]
        failed = [id for id in ids if id in self.failures]
        if not done or len(done) + len(failed) < len(ids):
            return []
        decided = [
            record["homogenizers"]
            for (_, role), record in self.results.items()
            if role == "compare" and (record["learner"], record["label"]) == (row.learner, row.label)
        ]
        # What was decided stays decided, even if a candidate that failed then is there now.
        best = max(done, key=lambda record: (record["homogenizers"] in decided, _rank(record)))
        runs = plan.tuned_runs(self.config, row, best["homogenizers"])
        if (runs[0].id, "compare") not in self.results:
            self._handle({**best, "role": "compare"})
        return [run for run in runs[1:] if (run.id, "compare") not in self.results]

    def _append(self, record: dict[str, Any]) -> None:
        self.log.append(record)
        self._observers(record["event"], record)


def _rank(record: dict[str, Any]) -> float:
    """Larger is better; a score that is not finite (null in the log) is worst."""
    score = record["validation"]
    if score is None or not math.isfinite(score):
        return -math.inf
    return float(score if metric(record["metric"]).higher_is_better else -score)

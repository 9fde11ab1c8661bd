"""Helpers that train runs in this process, interrupt them, or write the folder of a comparison from records."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from gradhomog.experiments.results.comparison_dir import Plan, run_dir
from gradhomog.experiments.results.events import VERSION, EventLog, json_compatible
from gradhomog.experiments.results.run_dir import RunDir
from gradhomog.experiments.results.runs import Method, Run
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.training.trainer import Trainer

Record = dict[str, Any]

# Arguments of Python for the command `gradhomog` without the figures of its report, which take longer than the runs.
WITHOUT_FIGURES = (
    "-c",
    "import sys\n"
    "import gradhomog.experiments.report.page as page\n"
    "page._save_figures = lambda *arguments: {}\n"
    "from gradhomog.cli import main\n"
    "sys.exit(main())\n",
)


def gradhomog_without_figures(*arguments: str) -> list[str]:
    return [sys.executable, *WITHOUT_FIGURES, *arguments]


def trainer(config: Config, run: Run, folder: Path, records: list[Record] | None = None) -> Trainer:
    """Return the trainer of a run in a folder; its events are appended to `records`."""
    run_config = config.for_run(run.learner, run.homogenizers, run.seed)
    return Trainer(
        run_config, run, RunDir(folder), lambda event, record: records is None or records.append(dict(record))
    )


@contextmanager
def interrupted_after(steps: int, homogenizers: str | None = None) -> Iterator[list[int]]:
    """Raise SIGINT after this many steps (of runs with these homogenizers); yield the list of steps done."""
    done: list[int] = []
    original = Trainer._step

    def step(self: Trainer) -> None:
        original(self)
        if homogenizers in (None, self.run.homogenizers):
            done.append(self.done)
            if len(done) == steps:
                signal.raise_signal(signal.SIGINT)

    with mock.patch.object(Trainer, "_step", step):
        yield done


def write_comparison(folder: Path, records: Sequence[Record]) -> None:
    """Write the folder of a comparison that has these records."""
    start = next((record for record in records if record["event"] == "start"), {})
    config = start.get("config", {})
    results = [record for record in records if record["event"] == "result"]
    rows = [(row["learner"], row["label"]) for row in start.get("rows") or ()]
    rows += [(record["learner"], record["label"]) for record in results]
    methods = []
    for pair in dict.fromkeys(rows):
        matching = [record for record in results if (record["learner"], record["label"]) == pair]
        tuned = next((tuple(record["tuned_from"]) for record in matching if record.get("tuned_from")), ())
        methods.append(Method(*pair, tuned or (matching[0]["homogenizers"] if matching else pair[1],)))
    seeds = tuple(dict.fromkeys(record["seed"] for record in results)) or (0,)
    count = config.get("seeds")
    seeds = tuple(range(count)) if isinstance(count, int) and count > len(seeds) else seeds
    metadata = {key: start[key] for key in ("tasks", "notes", "fingerprints", "held_out") if key in start}
    folder.mkdir(parents=True, exist_ok=True)
    Plan(config, start.get("digest", ""), tuple(methods), seeds, metadata).write(folder)
    runs_by_name = {}
    for record in results:
        run = Run(record["learner"], record["homogenizers"], record["seed"])
        runs_by_name.setdefault(record["run"], run)
    for record in records:
        if record["event"] == "failed":
            runs_by_name.setdefault(record["run"], Run(record["learner"], record["label"], record["seed"]))
    for name, run in runs_by_name.items():
        run_folder = run_dir(folder, run)
        run_folder.create("")
        log = EventLog(run_folder.events)
        log.append(
            {
                "event": "start", "version": VERSION, "time": start.get("time", ""), "step": 0,
                "versions": start.get("versions", {}), "machine": start.get("machine", {}),
                "jobs": start.get("jobs", 1),
            }
        )  # fmt: skip
        for record in records:
            if record.get("run") == name and record["event"] not in ("start", "result"):
                log.append({"seconds": 1.0, **record})
        result = next((record for record in results if record["run"] == name), None)
        if result is not None:
            extra = {
                "run": run.id,
                "digest": "of the configuration",
                "fingerprints": metadata.get("fingerprints", {}),
            }
            written = {
                key: value for key, value in result.items() if key not in ("tuned_from", "chosen", "role", "label")
            }
            run_folder.finish({**json_compatible(written), **extra})

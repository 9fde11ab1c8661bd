"""Helpers that train runs in this process, interrupt them, or write the folder of a comparison from records."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from gradhomog.experiments.results.comparison_dir import Plan, RunDir, run_dir
from gradhomog.experiments.results.events import VERSION, EventLog, json_compatible
from gradhomog.experiments.results.records import records
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.runs import Method, Run
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
    run_config = config.for_run(run)
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


def results(folder: Path) -> dict[tuple[str, str, int, str], tuple[Any, ...]]:
    """Return the scores of each result of a comparison, and the step that validation chose."""
    return {
        (r["label"], r["homogenizers"], r["seed"], r["role"]): (r["scores"], r["validation"], r["best_step"])
        for r in records(folder)
        if r["event"] == "result"
    }


def write_comparison(folder: Path, records: Sequence[Record]) -> None:
    """Write the folder of a comparison that has these records."""
    start, *logged = records
    results = {record["run"]: record for record in logged if record["event"] == "result"}
    compared = {(r["learner"], r["label"]): r for r in results.values() if r["role"] == "compare"}
    methods = []
    for learner in start["config"]["learner"]:
        for text in start["config"]["homogenizers"]:
            label = "plain" if text == "none" else text
            methods.append(Method(learner, label, compared.get((learner, label), {}).get("tuned_from", [text])))
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(start["config"], "", methods, list(range(start["seeds"])), {})
    plan.write(folder)
    for name, result in results.items():
        run = Run(result["learner"], result["homogenizers"], result["seed"])
        run_folder = run_dir(folder, run)
        run_folder.create("")
        log = EventLog(run_folder.events)
        log.append({"version": VERSION, "step": 0, **start})
        for record in logged:
            if record["run"] == name and record["event"] != "result":
                log.append({"seconds": 1.0, **record})
        written = {key: value for key, value in result.items() if key not in ("tuned_from", "chosen", "role", "label")}
        identity = {"run": run.id, "digest": plan.configuration.for_run(run).digest, "fingerprints": {}}
        run_folder.finish({**json_compatible(written), **identity})

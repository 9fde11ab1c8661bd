"""All events and results of a comparison as one list of records, in the order of its table, for reports and figures.

A record is an event or a result of a run, with the entries of its method: `run`, `learner`, `label`, `homogenizers`,
`seed` and `role`. The role is "candidate" for runs of a tuned method's candidates, else "compare". Results of tuned
methods also have `tuned_from` (the candidates) and `chosen`. The first record is `start`: the `config` of the
comparison, `rows` (learner and label of each method), `time`, `versions` and `machine` of the run that started last,
the largest number of `jobs`, and `Plan.metadata`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import checksums, events
from gradhomog.experiments.results.comparison_dir import Plan, run_dir
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.run_dir import EVENTS
from gradhomog.experiments.results.runs import PLAIN, Method, Run, chosen_candidate
from gradhomog.experiments.run_file.pins import versions as pin_versions


def records(folder: Path) -> list[Record]:
    """Return the records of a comparison's folder, finished or not.

    Raises:
        ConfigError: a file is missing, damaged or of another version; names the file.
    """
    plan = Plan.read(folder)
    return _Reader(folder, plan).all()


class _Reader:
    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.results: dict[str, Any] = {}
        self.events: dict[str, list[Any]] = {}
        for run in plan.runs:
            self._read(run)

    def _read(self, run: Run) -> None:
        run_folder = run_dir(self.folder, run)
        if (result := run_folder.result()) is not None:
            self.plan.check_fingerprints(result["fingerprints"], str(run_folder.path))
            log = {EVENTS: result["files"].get(EVENTS, "")}
            if (error := next(checksums.check_files(run_folder.path, log))[1]) is not None:
                raise ConfigError(f"{error} Restore it, or remove the folder to train this run again.")
            self.results[run.id] = result
        self.events[run.id] = events.read(run_folder.events)

    def all(self) -> list[Record]:
        return [self._start(), *(record for method in self.plan.methods for record in self._method_records(method))]

    def _start(self) -> Record:
        plan = self.plan
        starts = [event for run in self.events.values() for event in run if event["event"] == "start"]
        default: Record = {"time": "", "versions": {}, "machine": {}, "jobs": 1}
        last: Record = max(starts, key=lambda event: event["time"], default=default)
        versions: Record = {**last["versions"], **pin_versions(plan.config.get("plugins", ()))}
        return {
            **plan.metadata, "event": "start", "config": plan.config, "digest": plan.digest,
            "rows": [{"learner": method.learner, "label": method.label} for method in plan.methods],
            "time": last["time"], "versions": versions, "machine": last["machine"],
            "jobs": max((event["jobs"] for event in starts), default=1),
        }  # fmt: skip

    def _method_records(self, method: Method) -> Iterator[Record]:
        first = self.plan.seeds[0]
        failed = {id for id, log in self.events.items() if log and log[-1]["event"] == "failed"}
        chosen = chosen_candidate(method, first, self.results, failed)
        if method.tuned:
            for text in method.candidates:
                run = Run(method.learner, text, first)
                yield from self._run_records(method, run, "candidate", {}, with_events=text != chosen)
        if chosen is None:
            return
        tuning = {"tuned_from": list(method.candidates), "chosen": chosen} if method.tuned else {}
        for seed in self.plan.seeds:
            yield from self._run_records(method, Run(method.learner, chosen, seed), "compare", tuning)

    def _run_records(
        self, method: Method, run: Run, role: str, extra: Record, with_events: bool = True
    ) -> Iterator[Record]:
        identity = {**run.identity, "label": method.label, "role": role}
        if with_events:  # the events of the chosen candidate are listed once, with the role "compare"
            for event in self.events.get(run.id, ()):
                if event["event"] != "start":
                    yield {**event, **identity}
        if run.id in self.results:
            yield {**self.results[run.id], **identity, **extra}


def row_order(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Return learner and label of each method with a result, in the configuration's order, plain first per learner."""
    configured: list[tuple[str, str]] = []
    finished: list[tuple[str, str]] = []
    for record in records:
        if record["event"] == "start":
            configured = [(row["learner"], row["label"]) for row in record.get("rows") or ()]
        elif record["event"] == "result" and record["role"] == "compare":
            finished.append((record["learner"], record["label"]))
    pairs = [pair for pair in dict.fromkeys([*configured, *finished]) if pair in set(finished)]
    learners = list(dict.fromkeys(learner for learner, _ in pairs))
    return sorted(pairs, key=lambda pair: (learners.index(pair[0]), pair[1] != PLAIN))


def by_run_and_label(records: Iterable[Record], event: str) -> dict[tuple[str, str], list[Record]]:
    """Return the records of an event by run and label, sorted by step. Methods that share a run share its records."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record["event"] == event:
            groups.setdefault((record["run"], record["label"]), []).append(record)
    return {key: sorted(group, key=lambda record: record["step"]) for key, group in groups.items()}

"""All runs of a comparison as one list of records, in the order of its table: what reports and figures are made of.

A record is an event, or a result, of a run, with the method that it belongs to: `run`, `learner`, `label`,
`homogenizers`, `seed`. A result also has a `role`, "candidate" for one that was tried for a tuned method, else
"compare", and where the method was tuned `tuned_from`, the candidates, and `chosen`. The list begins with one record
`start`: the `config` of the comparison, `rows` (learner and label of each method), `time`, `versions`, `machine` and
`jobs` of the last run that began, and `Plan.about`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gradhomog.experiments.config.pins import versions as pin_versions
from gradhomog.experiments.results import events
from gradhomog.experiments.results.comparison_dir import Plan, run_dir
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.plan import PLAIN, Method, Run, choice


def records(folder: Path) -> list[Record]:
    """Read the folder of a comparison, finished or not.

    Raises:
        ConfigError: a file is missing, damaged or of another version; names it.
    """
    plan = Plan.read(folder)
    return _Reader(folder, plan).all()


class _Reader:
    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.results: dict[str, Any] = {}
        self.events: dict[str, list[Any]] = {}
        for method in plan.methods:
            for text in method.candidates:
                for seed in plan.seeds:
                    self._read(Run(method.learner, text, seed))

    def _read(self, run: Run) -> None:
        if run.id in self.events:
            return
        where = run_dir(self.folder, run)
        self.events[run.id] = events.read(where.events)
        if (result := where.result()) is not None:
            self.results[run.id] = result

    def all(self) -> list[Record]:
        found = [record for method in self.plan.methods for record in self._of_method(method)]
        return [self._start(), *found]

    def _start(self) -> Record:
        plan = self.plan
        starts = [event for run in self.events.values() for event in run if event["event"] == "start"]
        none: Record = {"time": "", "versions": {}, "machine": {}, "jobs": 1}
        last: Record = max(starts, key=lambda event: event["time"], default=none)
        versions: Record = {**last["versions"], **pin_versions(plan.config.get("plugins", ()))}
        return {
            **plan.about, "event": "start", "config": plan.config, "digest": plan.digest,
            "rows": [{"learner": method.learner, "label": method.label} for method in plan.methods],
            "time": last["time"], "versions": versions, "machine": last["machine"],
            "jobs": max((event["jobs"] for event in starts), default=1),
        }  # fmt: skip

    def _of_method(self, method: Method) -> Iterator[Record]:
        first = self.plan.seeds[0]
        failed = {id for id, found in self.events.items() if found and found[-1]["event"] == "failed"}
        taken = choice(method, first, self.results, failed)
        if method.tuned:
            for text in method.candidates:
                run = Run(method.learner, text, first)
                yield from self._of_run(method, run, "candidate", {}, told=text != taken)
        if taken is None:
            return
        more = {"tuned_from": list(method.candidates), "chosen": taken} if method.tuned else {}
        for seed in self.plan.seeds:
            yield from self._of_run(method, Run(method.learner, taken, seed), "compare", more)

    def _of_run(self, method: Method, run: Run, role: str, more: Record, told: bool = True) -> Iterator[Record]:
        identity = {**run.identity, "label": method.label, "role": role}
        if told:  # else the same events follow, as those of the method
            for event in self.events.get(run.id, ()):
                if event["event"] != "start":
                    yield {**event, **identity}
        if run.id in self.results:
            yield {**self.results[run.id], **identity, **more}


def row_order(found: Iterable[Record]) -> list[tuple[str, str]]:
    """Learner and label of every method with a result, in the configuration's order, plain first within a learner."""
    named: list[tuple[str, str]] = []
    there: list[tuple[str, str]] = []
    for record in found:
        if record["event"] == "start":
            named = [(row["learner"], row["label"]) for row in record.get("rows") or ()]
        elif record["event"] == "result" and record["role"] == "compare":
            there.append((record["learner"], record["label"]))
    pairs = [pair for pair in dict.fromkeys([*named, *there]) if pair in set(there)]
    learners = list(dict.fromkeys(learner for learner, _ in pairs))
    return sorted(pairs, key=lambda pair: (learners.index(pair[0]), pair[1] != PLAIN))


def by_run_and_label(records: Iterable[Record], event: str) -> dict[tuple[str, str], list[Record]]:
    """Records of an event by run and method, by step. Methods that share a run have each a copy of its records."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record["event"] == event:
            found.setdefault((record["run"], record["label"]), []).append(record)
    return {of: sorted(group, key=lambda record: record["step"]) for of, group in found.items()}

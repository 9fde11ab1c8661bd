"""All events and results of a comparison as one list of records, in the order of its table, for reports and figures.

A record is an event or a result of a run, with the entries of its method: `run`, `learner`, `label`, `homogenizers`,
`seed` and `role`. The role is "candidate" for runs of a tuned method's candidates, else "compare". Results of tuned
methods also have `tuned_from` (the candidates) and `chosen`. Methods are in the order of the configuration, the plain
learner first. The first record is `start`: the `config` of the comparison, the number of its `seeds` and of the `runs`
of its table, `time`, `versions` and `machine` of the run that started last, the largest number of `jobs`, and
`Plan.metadata`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import checksums, events
from gradhomog.experiments.results.comparison_dir import EVENTS, Plan, run_dir
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.run_file.pins import versions as pin_versions
from gradhomog.experiments.runs import PLAIN, Method, Run, chosen_candidate


def records(folder: Path) -> list[Record]:
    """Return the records of a comparison's folder, finished or not.

    Raises:
        ConfigError: a file is missing, damaged or of another version; names the file.
    """
    plan = Plan.read(folder)
    results: dict[str, Any] = {}
    logs: dict[str, list[Any]] = {}
    for run in plan.runs:
        run_folder = run_dir(folder, run)
        if (result := plan.read_result(folder, run)) is not None:
            log = {EVENTS: result["files"].get(EVENTS, "")}
            if (error := next(checksums.check_files(run_folder.path, log))) is not None:
                raise ConfigError(f"{error} Restore it, or remove the folder to train this run again.")
            results[run.id] = result
        logs[run.id] = events.read(run_folder.events)
    learners = [method.learner for method in plan.methods]
    ordered = sorted(plan.methods, key=lambda method: (learners.index(method.learner), method.label != PLAIN))
    return [
        _start(plan, logs),
        *(record for method in ordered for record in _method_records(method, plan.seeds, results, logs)),
    ]


def _start(plan: Plan, logs: Mapping[str, Sequence[Any]]) -> Record:
    starts = [event for log in logs.values() for event in log if event["event"] == "start"]
    default: Record = {"time": "", "versions": {}, "machine": {}}
    last: Record = max(starts, key=lambda event: event["time"], default=default)
    return {
        **plan.metadata, "event": "start", "config": plan.config, "digest": plan.digest, "seeds": len(plan.seeds),
        "runs": len(plan.methods) * len(plan.seeds), "time": last["time"], "machine": last["machine"],
        "versions": {**last["versions"], **pin_versions(plan.config.get("plugins", ()))},
        "jobs": max((event["jobs"] for event in starts), default=1),
    }  # fmt: skip


def _method_records(
    method: Method, seeds: Sequence[int], results: Mapping[str, Any], logs: Mapping[str, Sequence[Any]]
) -> Iterator[Record]:
    failed = {run for run, log in logs.items() if log and log[-1]["event"] == "failed"}
    chosen = chosen_candidate(method, seeds[0], results, failed)
    runs = [(Run(method.learner, text, seeds[0]), "candidate") for text in method.candidates if method.tuned]
    if chosen is not None:
        runs += [(Run(method.learner, chosen, seed), "compare") for seed in seeds]
    tuning = {"tuned_from": method.candidates, "chosen": chosen} if method.tuned else {}
    for run, role in runs:
        identity = {**run.identity, "label": method.label, "role": role}
        if role == "compare" or run.homogenizers != chosen:  # the events of the chosen candidate are listed once
            yield from ({**event, **identity} for event in logs[run.id] if event["event"] != "start")
        if run.id in results:
            yield {**results[run.id], **identity, **(tuning if role == "compare" else {})}

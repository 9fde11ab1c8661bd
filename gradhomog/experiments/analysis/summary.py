"""The summary of a comparison: one row per method, the candidates of tuned methods, missing runs and failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradhomog.errors import ConfigError
from gradhomog.experiments.analysis.method_rows import MethodRow, best_baselines, improvement_baseline, make_method_rows
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.results.events import Record, json_compatible, numbers
from gradhomog.experiments.results.records import row_order


@dataclass(frozen=True)
class Candidate:
    """A candidate of a tuned method; `validation` is its best validation score."""

    learner: str
    label: str
    homogenizers: str
    seed: int
    validation: float
    best_step: int | None
    chosen: bool


def candidates(results: Sequence[Record], rows: Sequence[MethodRow]) -> list[Candidate]:
    """All candidates with a result, in the order of the configuration; candidates without a row are last."""
    chosen = {(row.learner, row.label, row.chosen) for row in rows if row.chosen is not None}
    order = [(row.learner, text) for row in rows for text in row.tuned_from]
    unordered = [
        Candidate(
            record["learner"],
            record["label"],
            record["homogenizers"],
            record["seed"],
            numbers([record.get("validation")])[0],
            record.get("best_step"),
            (record["learner"], record["label"], record["homogenizers"]) in chosen,
        )
        for record in results
        if record["role"] == "candidate"
    ]
    places = {pair: place for place, pair in enumerate(order)}
    return sorted(unordered, key=lambda item: places.get((item.learner, item.homogenizers), len(order)))


@dataclass(frozen=True)
class Summary:
    """The table of a comparison, with information about its runs.

    Attributes:
        tasks: number of test tasks, the same for all runs.
        finished_runs: number of finished runs that belong to a row.
        expected_runs: number of runs of the comparison; None if unknown.
        failures: the last message of each run that failed and has no result.
        best_baselines: the label of the baseline with the best score, by learner.
        problem: name of the multi-task problem.
        notes: sentences about the data of the problem.
        improvement_baseline: the label of the baseline of `MethodRow.improvement`.
        held_out: True if candidates were chosen on validation data, and scores are of other data.
        has_candidate_runs: True if there are runs of candidates, finished or failed.
        parallel: True if several runs used the machine simultaneously, or if this is unknown.
    """

    metric: str
    tasks: int
    rows: tuple[MethodRow, ...]
    candidates: tuple[Candidate, ...]
    finished_runs: int
    expected_runs: int | None
    failures: dict[str, str]
    best_baselines: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    notes: tuple[str, ...] = ()
    improvement_baseline: str | None = None
    held_out: bool = True
    has_candidate_runs: bool = False
    parallel: bool = True

    def score_name(self, split: Literal["test", "validation"]) -> str:
        """The name of a score, such as "test accuracy"; only the name of the metric if no data are held out."""
        words = metric(self.metric).words
        return f"{split} {words}" if self.held_out else words

    @property
    def learners(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.learner for row in self.rows))

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(domain for row in self.rows for domain in row.by_domain))

    def rows_of(self, learner: str) -> tuple[MethodRow, ...]:
        return tuple(row for row in self.rows if row.learner == learner)


def summarize(records: Iterable[Record]) -> Summary:
    """Summarize the records of a comparison, finished or not.

    Args:
        records: the records of all runs; see `gradhomog.experiments.results.records`.

    Raises:
        ConfigError: results have different test tasks.
    """
    records = list(records)
    results = [record for record in records if record["event"] == "result"]
    compared = [record for record in results if record["role"] == "compare"]
    start: Record = next((r for r in reversed(records) if r["event"] == "start"), {})
    config: Record = start.get("config") or {}
    for record in compared:
        if any(record[name] != compared[0][name] for name in ("metric", "domains")) or (
            len(record["scores"]) != len(record["domains"])
        ):
            raise ConfigError(
                f"runs {compared[0]['run']!r} and {record['run']!r} were not tested on the same tasks "
                f"({len(compared[0]['scores'])} and {len(record['scores'])} scores). Repeat the comparison in an empty "
                "folder."
            )
    groups: dict[tuple[str, str], dict[int, Record]] = {}
    for record in compared:
        groups.setdefault((record["learner"], record["label"]), {})[record["seed"]] = record
    problem = next((record["problem"] for record in compared if "problem" in record), None)
    rows = make_method_rows(groups, row_order(records), _seed_count(config))
    done = {record["run"] for record in results}
    base = improvement_baseline(groups, problem) if problem else None
    name = compared[0]["metric"] if compared else "accuracy"
    return Summary(
        metric=name,
        tasks=len(compared[0]["scores"]) if compared else 0,
        rows=tuple(rows),
        candidates=tuple(candidates(results, rows)),
        finished_runs=len(compared),
        expected_runs=_expected_runs(config),
        failures={r["run"]: str(r["error"]) for r in records if r["event"] == "failed" and r["run"] not in done},
        best_baselines=best_baselines(rows, metric(name).higher_is_better),
        problem=problem,
        notes=tuple(start.get("notes") or ()),
        improvement_baseline=base if any(row.improvement for row in rows) else None,
        held_out=start.get("held_out", True),
        has_candidate_runs=any(record.get("role") == "candidate" for record in records),
        parallel=any(record.get("jobs") != 1 for record in records if record["event"] == "start") or not start,
    )


def to_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain dicts and lists; unknown values and numbers that are not finite are None."""
    content: dict[str, Any] = json_compatible(dataclasses.asdict(summary))
    return content


def _seed_count(config: Record) -> int | None:
    """The number of seeds of a configuration; None if the runs have no `start`."""
    seeds = config.get("seeds")
    return len(seeds) if isinstance(seeds, list) else seeds


def _expected_runs(config: Record) -> int | None:
    """Learners times methods times seeds of a configuration; None if there is none. A problem has one learner."""
    seeds = _seed_count(config)
    learner = config.get("learner", "network")
    count = 1 if isinstance(learner, str) else len(learner)
    return None if seeds is None else count * len(config["homogenizers"]) * seeds

"""What the results of a comparison say: one row per method, with intervals and paired differences to plain."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradhomog.experiments.analysis.consistency import check
from gradhomog.experiments.analysis.improvement import baseline, improvement
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.slow_homogenizers import Slow, slow
from gradhomog.experiments.analysis.statistics import Interval, mean_interval, paired_interval
from gradhomog.experiments.results.events import Record, numbers, plain
from gradhomog.experiments.results.plan import PLAIN
from gradhomog.experiments.results.records import row_order

Unit = Literal["seeds", "tasks", "one"]
"""Over what an interval is taken: means of seeds, or with a single seed the test tasks. The tasks of a multi-task
problem are no sample of others: with one seed there is one number, and no interval."""

Verdict = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Row:
    """One method of the table.

    Attributes:
        seeds: those that finished, in increasing order; `expected_seeds` is how many there should be, None if unknown.
        score: mean over seeds of the mean score over test tasks, with its interval over `unit`.
        difference: to the plain learner, over the seeds that both have, paired by seed, or with one such seed by test
            task (`difference_unit`); None for the plain learner and where there is nothing to pair with.
        verdict: "better" or "worse" only if the interval of the difference excludes 0; None where there is none.
        by_domain: mean and interval for the test tasks of each domain, over `unit`.
        seed_scores: mean over test tasks, one per seed.
        step_seconds: mean time of a training step; `time_ratio` is to the plain learner over the same seeds, None if
            unknown.
        improvement: of a multi-task problem, Δm over `Summary.baseline`; None for that baseline, and where it means
            nothing.
        also: further numbers of a problem by name, over seeds.
        tuned_from, chosen: pipelines that were tried on validation tasks, and the one taken; None if nothing was tuned.
    """

    learner: str
    label: str
    homogenizers: str
    seeds: tuple[int, ...]
    expected_seeds: int | None
    score: Interval
    unit: Unit
    by_domain: dict[str, Interval]
    seed_scores: tuple[float, ...]
    difference: Interval | None = None
    difference_unit: Unit | None = None
    verdict: Verdict | None = None
    step_seconds: float | None = None
    time_ratio: float | None = None
    improvement: Interval | None = None
    also: dict[str, Interval] = field(default_factory=dict)
    tuned_from: tuple[str, ...] = ()
    chosen: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A pipeline that was tried for a tuned method; `validation` is its best validation score."""

    learner: str
    label: str
    homogenizers: str
    seed: int
    validation: float
    best_step: int | None
    chosen: bool


@dataclass(frozen=True)
class Summary:
    """The table. `tasks` counts test tasks, the same for every run; `finished` counts runs that belong to a row.

    `failures` holds the last message of each run that failed and has no result; `slow` the homogenizers that took most
    of the time of their training steps. Of a multi-task problem there are also its name, `notes` on its data, and the
    `baseline` of each `Row.improvement`. `held_out` says whether what was tuned was tuned on other data than the scores
    are of, `tried` whether there are runs of candidates, finished or failed, and `parallel` whether several runs used
    the machine at a time, as far as is known.
    """

    metric: str
    tasks: int
    rows: tuple[Row, ...]
    candidates: tuple[Candidate, ...]
    finished: int
    expected: int | None
    failures: dict[str, str]
    slow: tuple[Slow, ...] = ()
    problem: str | None = None
    notes: tuple[str, ...] = ()
    baseline: str | None = None
    held_out: bool = True
    tried: bool = False
    parallel: bool = True

    def score_of(self, part: Literal["test", "validation"]) -> str:
        """What a score of this part is called: "test accuracy"; the metric alone, where there are no such parts."""
        words = metric(self.metric).words
        return f"{part} {words}" if self.held_out else words

    @property
    def learners(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.learner for row in self.rows))

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(domain for row in self.rows for domain in row.by_domain))

    def rows_of(self, learner: str) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.learner == learner)


def summarize(records: Iterable[Record], expected_runs: int | None = None) -> Summary:
    """Summarize a log, finished or not. Without `expected_runs` the configuration may tell it.

    Raises:
        ConfigError: two results claim the same place, or results were measured on different tests.
    """
    records = list(records)
    results = [record for record in records if record["event"] == "result"]
    compared = [record for record in results if record["role"] == "compare"]
    start: Record = next((r for r in reversed(records) if r["event"] == "start"), {})
    config: Record = start.get("config") or {}
    check(compared)
    groups: dict[tuple[str, str], dict[int, Record]] = {}
    for record in compared:
        groups.setdefault((record["learner"], record["label"]), {})[record["seed"]] = record
    expected_seeds = _count(config.get("seeds"))
    problem = next((record["problem"] for record in compared if "problem" in record), None)
    base = baseline(groups, problem) if problem else None
    rows = [
        _row(
            groups[learner, label],
            groups.get((learner, PLAIN), {}),
            groups.get((learner, base or ""), {}),
            expected_seeds,
        )
        for learner, label in row_order(records)
    ]
    done = {record["run"] for record in results}
    return Summary(
        metric=compared[0]["metric"] if compared else "accuracy",
        tasks=len(compared[0]["scores"]) if compared else 0,
        rows=tuple(rows),
        candidates=tuple(_candidates(results, rows)),
        finished=len(compared),
        expected=expected_runs if expected_runs is not None else _expected(config),
        failures={r["run"]: str(r["error"]) for r in records if r["event"] == "failed" and r["run"] not in done},
        slow=slow(results),
        problem=problem,
        notes=tuple(start.get("notes") or ()),
        baseline=base if any(row.improvement for row in rows) else None,
        held_out=start.get("held_out", True),
        tried=any(record.get("role") == "candidate" for record in records),
        parallel=any(_workers(record) != 1 for record in records if record["event"] == "start") or not start,
    )


def to_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain dicts and lists; None for what is unknown or not finite."""
    content: dict[str, Any] = plain(dataclasses.asdict(summary))
    return content


def _row(
    runs: dict[int, Record], base: dict[int, Record], improved: dict[int, Record], expected_seeds: int | None
) -> Row:
    """A method's row; `base` are the plain learner's runs, and `improved` those that Δm is over."""
    seeds = sorted(runs)
    first = runs[seeds[0]]
    scores = [numbers(runs[seed]["scores"]) for seed in seeds]
    sampled = "problem" not in first
    values, unit = _values(scores, sampled)
    domains = first["domains"]
    by_domain = {
        name: mean_interval(_values([_of_domain(name, row, domains) for row in scores], sampled)[0])
        for name in dict.fromkeys(domains)
    }
    row = Row(
        first["learner"],
        first["label"],
        first["homogenizers"],
        tuple(seeds),
        expected_seeds,
        mean_interval(values),
        unit,
        by_domain,
        tuple(_mean(row) for row in scores),
        step_seconds=_step_seconds(runs, seeds),
        improvement=None if improved is runs else improvement(runs, improved),
        also={name: _mean_of(runs, seeds, name) for name in first.get("also", ())},
        tuned_from=tuple(first.get("tuned_from") or ()),
        chosen=first.get("chosen"),
    )
    common = [seed for seed in seeds if seed in base]
    if row.label == PLAIN or not common:
        return row
    ours, difference_unit = _values([numbers(runs[seed]["scores"]) for seed in common], sampled)
    theirs, _ = _values([numbers(base[seed]["scores"]) for seed in common], sampled)
    difference = paired_interval(ours, theirs)
    our_time, their_time = _step_seconds(runs, common), _step_seconds(base, common)
    return dataclasses.replace(
        row,
        difference=difference,
        difference_unit=difference_unit,
        verdict=_verdict(difference, metric(first["metric"]).higher_is_better),
        time_ratio=our_time / their_time if our_time and their_time else None,
    )


def _values(scores: Sequence[Sequence[float]], sampled: bool) -> tuple[Sequence[float], Unit]:
    """What an interval is taken over, of scores `[seeds, tasks]`: the means of several seeds, or one seed's tasks, if
    these are a sample.

    Tasks of several seeds are not pooled: they are the same tasks again, and what a training makes of them hangs
    together.
    """
    if len(scores) > 1 or not sampled:
        return [_mean(row) for row in scores], "seeds" if len(scores) > 1 else "one"
    return scores[0], "tasks"


def _of_domain(name: str, scores: Sequence[float], domains: Sequence[str]) -> list[float]:
    return [score for score, domain in zip(scores, domains, strict=True) if domain == name]


def _mean(values: Sequence[float]) -> float:
    return mean_interval(values).mean


def _verdict(difference: Interval, higher_is_better: bool) -> Verdict | None:
    if math.isnan(difference.half_width):
        return None
    if not difference.excludes_zero:
        return "undecided"
    return "better" if (difference.mean > 0) == higher_is_better else "worse"


def _mean_of(runs: dict[int, Record], seeds: Sequence[int], name: str) -> Interval:
    return mean_interval(numbers(runs[seed]["also"].get(name) for seed in seeds))


def _step_seconds(runs: dict[int, Record], seeds: Sequence[int]) -> float | None:
    times = numbers(runs[seed].get("step_seconds") for seed in seeds)
    mean = _mean(times)
    return mean if math.isfinite(mean) else None


def _candidates(results: Sequence[Record], rows: Sequence[Row]) -> list[Candidate]:
    """In the order of the configuration, as far as the row that chose among them tells it."""
    chosen = {(row.learner, row.label, row.chosen) for row in rows if row.chosen is not None}
    order = [(row.learner, text) for row in rows for text in row.tuned_from]
    found = [
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
    return sorted(found, key=lambda item: places.get((item.learner, item.homogenizers), len(order)))


def _workers(start: Record) -> int | None:
    """How many runs an invocation made at a time; older logs may only tell what was asked for."""
    found: int | None = start.get("workers", (start.get("config") or {}).get("workers"))
    return found


def _count(value: Any) -> int | None:
    """How many a setting asks for that is a number or a list."""
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, int) else None


def _expected(config: Record) -> int | None:
    learners = config.get("learner", "its network" if "problem" in config else None)
    seeds = _count(config.get("seeds"))
    methods = config.get("homogenizers")
    if not isinstance(learners, str | list) or not isinstance(methods, list) or seeds is None:
        return None
    return (1 if isinstance(learners, str) else len(learners)) * len(methods) * seeds

"""The summary of a comparison: one row per method, the candidates of tuned methods, missing runs and failures.

A row has the scores of a method, compared with the plain learner and with the best baseline, and Δm.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from gradhomog.errors import ConfigError
from gradhomog.experiments.analysis.statistics import (
    Interval,
    PairedComparison,
    Runs,
    Unit,
    compare_runs,
    correct_for_multiple_tests,
    independent_values,
    mean_interval,
    step_seconds,
)
from gradhomog.experiments.results.events import Record, json_compatible, numbers
from gradhomog.experiments.runs import PLAIN, SINGLE
from gradhomog.experiments.score_metrics import Metric, metric

Name = TypeVar("Name")


def named_scores(run: Record) -> list[tuple[str, Metric, float]]:
    """The scores of a run of a multi-task problem: the named ones with their metrics, or one for each task."""
    own = run.get("additional_metrics") or {}
    names, kinds = list(own) or run["domains"], [*own.values()] or [run["metric"]] * len(run["scores"])
    values = [run["additional_scores"].get(name) for name in own] if own else run["scores"]
    return list(zip(names, map(metric, kinds), numbers(values), strict=True))


def improvement_by_seed(runs: Runs, base: Runs) -> dict[int, float]:
    """Δm = 1/T Σ_t (M_t − B_t) / B_t by seed, with the named scores M_t of a method and B_t of the baseline.

    Positive is better: for errors the sign is reversed, and R² is converted to the error 1 − R². Runs are paired by
    seed, as for differences. Empty if ratios of a score are not meaningful.

    Source: Maninis, Radosavovic & Kokkinos 2019 (arXiv 1904.08918), equation 5, with single-task networks as baseline.
    Papers that call Δm a drop (CAGrad, Nash-MTL, FAMO) use the opposite sign. Several named scores of a task have equal
    weights, as in these papers; LibMTL averages within a task first.
    """
    found = {}
    for seed in sorted(seed for seed in runs if seed in base):
        pairs = list(zip(named_scores(runs[seed]), named_scores(base[seed]), strict=True))
        if not all(kind.ratios for (_, kind, _), _ in pairs):
            return {}
        ratios = [kind.improvement(score, other) for (_, kind, score), (*_, other) in pairs]
        found[seed] = mean_interval(ratios).mean
    return found


def mean_ranks(methods: Mapping[Name, Runs]) -> dict[Name, dict[int, float]]:
    """The mean over the named scores of a method's rank among all methods, by seed, for the seeds that all have.

    The best has rank 1; equal scores share the mean of their ranks. A mean rank depends on the methods of the table.

    Source: Nash-MTL (Navon et al. 2022, arXiv 2202.01017), section 6.
    """
    ranks: dict[Name, dict[int, float]] = {name: {} for name in methods}
    first = next(iter(methods.values()), {})
    for seed in sorted(seed for seed in first if all(seed in runs for runs in methods.values())):
        scores = {name: named_scores(runs[seed]) for name, runs in methods.items()}
        for name, own in scores.items():
            # 1 for each better score and 1/2 for each equal one, of which one is the method's own.
            found = [sum(1 + kind.is_better(other, score) - kind.is_better(score, other) for *_, other in column)
                     for (_, kind, score), *column in zip(own, *scores.values(), strict=True)]  # fmt: skip
            ranks[name][seed] = (1 + mean_interval(found).mean) / 2
    return ranks


def score_columns(methods: Mapping[Name, Runs], single: Runs) -> dict[tuple[str, str], dict[Name, dict[int, float]]]:
    """Columns by title and metric, with a number by method and seed: Δm as a drop, the mean rank, the named scores.

    Args:
        single: the results of single-task networks, one of the methods; empty if there are none.
    """
    ranked = {name: runs for name, runs in methods.items() if runs is not single}
    drops = {name: {seed: -gain for seed, gain in improvement_by_seed(runs, single).items()}
             for name, runs in ranked.items()}  # fmt: skip
    found = {("Δm %", "drop"): drops, ("mean rank", "rank"): mean_ranks(ranked)}
    for method, runs in methods.items():
        for seed, run in sorted(runs.items()):
            for name, kind, value in named_scores(run):
                found.setdefault((name, kind.name), {}).setdefault(method, {})[seed] = value
    return found


TUNED_STATIC = "static (tuned)"
"""The label of static weights that were chosen by validation."""

BASELINES = (PLAIN, TUNED_STATIC)
"""The baselines of new methods: the plain learner, and static weights chosen by a search."""

Groups = Mapping[tuple[str, str], Runs]
"""Results by (learner, label), then by seed."""


def runs_by_method(records: Iterable[Record]) -> dict[tuple[str, str], dict[int, Record]]:
    """The results of the methods that are compared, in the order of the table."""
    groups: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        if record["event"] == "result" and record["role"] == "compare":
            groups.setdefault((record["learner"], record["label"]), {})[record["seed"]] = record
    return groups


@dataclass(frozen=True)
class MethodRow:
    """One method of the table.

    Attributes:
        seeds: the seeds that finished, in increasing order.
        expected_seeds: the number of seeds of the comparison.
        score: mean over seeds of the mean score over test tasks, with its interval over `unit`.
        by_domain: mean and interval over `unit` for the test tasks of each domain.
        seed_scores: the mean over test tasks of each seed.
        to_plain: comparison with the plain learner; None for the plain learner, and without a common seed.
        to_baseline: comparison with the best baseline of the learner; None for the best baseline, and without a common
            seed.
        step_seconds: mean time of a training step; None if unknown.
        improvement: for a multi-task problem, Δm on `Summary.improvement_baseline`; None for that baseline, and if
            ratios of scores are not meaningful.
        mean_rank: for a multi-task problem with several named scores, the mean rank among all methods but single-task
            networks, over the seeds that all have.
        additional_scores: additional scores of a problem by name, over seeds.
        tuned_from: the pipelines that were candidates of a tuned method.
        chosen: the chosen candidate; None if the method was not tuned.
    """

    learner: str
    label: str
    homogenizers: str
    seeds: tuple[int, ...]
    expected_seeds: int
    score: Interval
    unit: Unit
    by_domain: dict[str, Interval]
    seed_scores: tuple[float, ...]
    to_plain: PairedComparison | None = None
    to_baseline: PairedComparison | None = None
    step_seconds: float | None = None
    improvement: Interval | None = None
    mean_rank: Interval | None = None
    additional_scores: dict[str, Interval] = field(default_factory=dict)
    tuned_from: tuple[str, ...] = ()
    chosen: str | None = None


def _compared(
    rows: Sequence[MethodRow], groups: Groups, best: Mapping[str, str], higher_is_better: bool
) -> list[MethodRow]:
    """The rows with their comparisons, and p values corrected over all rows of the table."""

    def compare(row: MethodRow, reference: str | None) -> PairedComparison | None:
        if reference is None or row.label == reference or (row.learner, reference) not in groups:
            return None
        return compare_runs(groups[row.learner, row.label], groups[row.learner, reference])

    to_plain = correct_for_multiple_tests([compare(row, PLAIN) for row in rows], higher_is_better)
    to_baseline = correct_for_multiple_tests([compare(row, best.get(row.learner)) for row in rows], higher_is_better)
    return [
        dataclasses.replace(row, to_plain=plain, to_baseline=baseline)
        for row, plain, baseline in zip(rows, to_plain, to_baseline, strict=True)
    ]


def best_baselines(rows: Sequence[MethodRow], higher_is_better: bool) -> dict[str, str]:
    """The label of the baseline with the best score, by learner; the plain learner if scores are equal."""
    best: dict[str, MethodRow] = {}
    for row in sorted(rows, key=lambda row: row.label != PLAIN):
        if row.label in BASELINES and math.isfinite(row.score.mean):
            other = best.setdefault(row.learner, row)
            if row.score.mean != other.score.mean and (row.score.mean > other.score.mean) == higher_is_better:
                best[row.learner] = row
    return {learner: row.label for learner, row in best.items()}


def _interval(by_seed: Mapping[int, float]) -> Interval | None:
    return mean_interval(list(by_seed.values())) if by_seed else None


def _score_row(runs: Runs, base: Runs, expected_seeds: int) -> MethodRow:
    """The row of a method without comparisons."""
    seeds = sorted(runs)
    first = runs[seeds[0]]
    scores = [numbers(runs[seed]["scores"]) for seed in seeds]
    sampled = "problem" not in first
    values, unit = independent_values(scores, sampled)
    by_domain = {}
    for name in dict.fromkeys(first["domains"]):
        of_domain = [[score for score, domain in zip(row, first["domains"], strict=True) if domain == name]
                     for row in scores]  # fmt: skip
        by_domain[name] = mean_interval(independent_values(of_domain, sampled)[0])
    return MethodRow(
        first["learner"],
        first["label"],
        first["homogenizers"],
        tuple(seeds),
        expected_seeds,
        mean_interval(values),
        unit,
        by_domain,
        tuple(mean_interval(row).mean for row in scores),
        step_seconds=step_seconds(runs, seeds),
        improvement=None if base is runs else _interval(improvement_by_seed(runs, base)),
        additional_scores={
            name: mean_interval(numbers(runs[seed]["additional_scores"].get(name) for seed in seeds))
            for name in first.get("additional_scores", ())
        },
        tuned_from=tuple(first.get("tuned_from", ())),
        chosen=first.get("chosen"),
    )


def _with_mean_ranks(rows: Sequence[MethodRow], groups: Groups) -> list[MethodRow]:
    ranks = mean_ranks({key: runs for key, runs in groups.items() if key[1] != SINGLE})
    return [dataclasses.replace(row, mean_rank=_interval(ranks.get((row.learner, row.label), {}))) for row in rows]


@dataclass(frozen=True)
class Candidate:
    """A candidate of a tuned method; `validation` is its best validation score."""

    learner: str
    label: str
    homogenizers: str
    seed: int
    validation: float
    best_step: int
    chosen: bool


def candidates(results: Sequence[Record], rows: Sequence[MethodRow]) -> list[Candidate]:
    """All candidates with a result, in the order of the configuration."""
    chosen = {(row.learner, row.label, row.chosen) for row in rows}
    return [
        Candidate(
            **{name: record[name] for name in ("learner", "label", "homogenizers", "seed", "best_step")},
            validation=numbers([record["validation"]])[0],
            chosen=(record["learner"], record["label"], record["homogenizers"]) in chosen,
        )
        for record in results
        if record["role"] == "candidate"
    ]


@dataclass(frozen=True)
class Summary:
    """The table of a comparison, with information about its runs.

    Attributes:
        tasks: number of test tasks, the same for all runs.
        finished_runs: number of finished runs that belong to a row.
        expected_runs: number of runs of the table.
        failures: the last message of each run that failed and has no result.
        best_baselines: the label of the baseline with the best score, by learner.
        problem: name of the multi-task problem.
        notes: sentences about the data of the problem.
        improvement_baseline: the label of the baseline of `MethodRow.improvement`.
        additional_metrics: the metrics of additional scores by name, if not that of the scores.
        held_out: True if candidates were chosen on validation data, and scores are of other data.
        has_candidate_runs: True if there are runs of candidates, finished or failed.
        parallel: True if several runs used the machine simultaneously.
    """

    metric: str
    tasks: int
    rows: tuple[MethodRow, ...]
    candidates: tuple[Candidate, ...]
    finished_runs: int
    expected_runs: int
    failures: dict[str, str]
    best_baselines: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    notes: tuple[str, ...] = ()
    improvement_baseline: str | None = None
    additional_metrics: dict[str, str] = field(default_factory=dict)
    held_out: bool = True
    has_candidate_runs: bool = False
    parallel: bool = False

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
    start, *logged = records
    results = [record for record in logged if record["event"] == "result"]
    compared = [record for record in results if record["role"] == "compare"]
    for record in compared:
        if any(record[name] != compared[0][name] for name in ("metric", "domains")) or (
            len(record["scores"]) != len(record["domains"])
        ):
            raise ConfigError(
                f"runs {compared[0]['run']!r} and {record['run']!r} were not tested on the same tasks "
                f"({len(compared[0]['scores'])} and {len(record['scores'])} scores). Repeat the comparison in an empty "
                "folder."
            )
    groups = runs_by_method(compared)
    problem = next((record["problem"] for record in compared if "problem" in record), None)
    base = next((label for label in (SINGLE, PLAIN) if (problem, label) in groups), None)
    base_runs = groups[str(problem), base] if base else {}
    scored = [_score_row(runs, base_runs, start["seeds"]) for runs in groups.values()]
    if problem and len(named_scores(compared[0])) > 1:
        scored = _with_mean_ranks(scored, groups)
    name = compared[0]["metric"] if compared else "accuracy"
    higher_is_better = metric(name).higher_is_better
    best = best_baselines(scored, higher_is_better)
    rows = _compared(scored, groups, best, higher_is_better)
    done = {record["run"] for record in results}
    return Summary(
        metric=name,
        tasks=len(compared[0]["scores"]) if compared else 0,
        rows=tuple(rows),
        candidates=tuple(candidates(results, rows)),
        finished_runs=len(compared),
        expected_runs=start["runs"],
        failures={r["run"]: str(r["error"]) for r in logged if r["event"] == "failed" and r["run"] not in done},
        best_baselines=best,
        problem=problem,
        notes=tuple(start.get("notes", ())),
        improvement_baseline=base if any(row.improvement for row in rows) else None,
        additional_metrics=compared[0].get("additional_metrics", {}) if compared else {},
        held_out=start.get("held_out", True),
        has_candidate_runs=any(record["role"] == "candidate" for record in logged),
        parallel=start["jobs"] != 1,
    )


def to_json(summary: Summary) -> Any:
    """The summary as plain dicts and lists; unknown values and numbers that are not finite are None."""
    return json_compatible(dataclasses.asdict(summary))

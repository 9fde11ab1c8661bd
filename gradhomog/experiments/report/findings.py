"""The findings of a comparison in sentences: methods better than the best baseline, and limits of the comparison."""

from collections.abc import Iterable, Sequence

from gradhomog.experiments.analysis.statistics import PairedComparison, deviation_factors
from gradhomog.experiments.analysis.summary import BASELINES, MethodRow, Summary
from gradhomog.experiments.report.tables import detectable_words, interval_text, p_text, ratio_text
from gradhomog.experiments.score_metrics import metric


def scope(summary: Summary) -> str:
    """One sentence about the number of finished runs and of test tasks."""
    finished = f"{summary.finished_runs} of {summary.expected_runs} runs finished"
    if summary.problem or not summary.rows:
        return f"{finished}."
    tasks = "task" if summary.tasks == 1 else "tasks"
    return f"{finished}, each tested on the same {summary.tasks} {tasks}."


def findings(summary: Summary) -> list[tuple[str, list[str]]]:
    """A headline and sentences for each learner, about the methods that differ significantly from its best baseline."""
    return [_learner_finding(summary, learner) for learner in summary.learners]


def baseline_notes(summary: Summary) -> list[str]:
    """Definitions and limits of the columns that compare methods with the best baseline."""
    comparisons = [row.to_baseline for row in summary.rows if row.to_baseline is not None]
    if not comparisons:
        return []
    kind = metric(summary.metric)
    tested = [comparison for comparison in comparisons if comparison.p_value is not None]
    units = {comparison.unit for comparison in tested}
    present = [label for label in BASELINES if any(row.label == label for row in summary.rows)]
    lines = []
    if len(present) > 1:
        lines.append(
            f"The best baseline is the one of {_join_names(present)} with the better score in this table. This choice "
            "favours the baseline, because it uses the scores that are compared."
        )
    pairs = " or ".join({"seeds": "seed", "tasks": "test task"}[unit] for unit in sorted(units - {"one"}))
    points = " in percentage points" if kind.percent else ""
    lower = "" if kind.higher_is_better else "; negative is better"
    if tested:
        lines.append(
            f"difference: method − baseline{points}, paired by {pairs}, with its 95 % confidence interval, which "
            f"is not corrected for multiple comparisons{lower}."
        )
        holm = f", corrected for {len(tested)} comparisons by Holm's procedure" if len(tested) > 1 else ""
        lines.append(f"p (Holm): two-sided paired t test{holm}; *: below 0.05.")
    if "tasks" in units:
        lines.append("With one seed, the test is over test tasks and does not include the variation between trainings.")
    busy = ", measured while other runs used the machine" if summary.parallel else ""
    lines.append(f"step time: ratio of the processor times of a training step{busy}; an indication, no benchmark.")
    lines += _seeds_note(summary, comparisons)
    return lines


def _learner_finding(summary: Summary, learner: str) -> tuple[str, list[str]]:
    rows = summary.rows_of(learner)
    prefix = f"{learner}: " if len(summary.learners) > 1 else ""
    label = summary.best_baselines.get(learner)
    if label is None:
        baselines = " or ".join(BASELINES)
        return f"{prefix}No baseline ({baselines}) has a finished run with a score, so no method can be compared.", []
    others = [row for row in rows if row.label != label]
    by_verdict: dict[str | None, list[MethodRow]] = {"better": [], "worse": [], "undecided": [], None: []}
    for row in others:
        by_verdict[row.to_baseline.verdict if row.to_baseline else None].append(row)
    better, worse, undecided, untested = by_verdict.values()
    sentences = [_baseline_sentence(summary, next(row for row in rows if row.label == label))]
    sentences += [_significance_sentence(summary, row, row.to_baseline) for row in (*better, *worse) if row.to_baseline]
    if undecided:
        sentences.append(f"No significant difference to {label} was found for {_join_labels(undecided)}.")
    if untested:
        sentences.append(f"There is no interval of the difference for {_join_labels(untested)}.")
    if better:
        verb = "are" if len(better) > 1 else "is"
        return f"{prefix}{_join_labels(better)} {verb} significantly better than the best baseline, {label}.", sentences
    found = "can be tested against" if len(untested) == len(others) else "is significantly better than"
    return f"{prefix}No method {found} the best baseline, {label}.", sentences


def _baseline_sentence(summary: Summary, base: MethodRow) -> str:
    score = interval_text(base.score, summary.metric, mean_only=base.unit == "one") + metric(summary.metric).unit
    where = f"On {summary.problem} the" if summary.problem else "The"
    mean = ", the mean over its tasks" if summary.problem else ""
    return f"{where} best baseline is {base.label}, with a {summary.score_name('test')} of {score}{mean}."


def _significance_sentence(summary: Summary, row: MethodRow, comparison: PairedComparison) -> str:
    kind = metric(summary.metric)
    difference = interval_text(comparison.difference, summary.metric, signed=True)
    points = " points" if kind.percent else f" in {kind.words}"
    cost = "" if comparison.time_ratio is None else f"; a step takes {ratio_text(comparison.time_ratio)} the time"
    p_value = p_text(comparison.adjusted_p_value)
    equals = p_value if p_value.startswith("<") else f"= {p_value}"
    return f"{row.label} is {comparison.verdict} by {difference}{points} (p {equals}){cost}."


def _seeds_note(summary: Summary, comparisons: Sequence[PairedComparison]) -> list[str]:
    counts = [comparison.difference.n for comparison in comparisons if comparison.seeds_needed is not None]
    if not counts:
        return []
    size = "one percentage point" if metric(summary.metric).percent else "5 % of the baseline's score"
    n = min(counts)
    low, high = deviation_factors(n)
    return [
        f"seeds for {detectable_words(summary)}: the number of seeds that detects a true difference of {size} with a "
        "power of 80 % (paired t test, two-sided 5 %, not corrected for multiple comparisons), estimated from the "
        f"observed spread of the paired differences. The spread of {n} seeds is uncertain: the 95 % confidence "
        f"interval of the true spread is {low:.2g} to {high:.2g} times the observed spread, and the number of seeds "
        "grows with the square of the spread."
    ]


def _join_labels(rows: Iterable[MethodRow]) -> str:
    return _join_names(row.label for row in rows)


def _join_names(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last

"""Answers in sentences: which methods are better than the best baseline, and the limits of the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.paired_comparison import Comparison
from gradhomog.experiments.analysis.power import deviation_factors
from gradhomog.experiments.analysis.rows import BASELINES, Row
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.columns import detectable_words
from gradhomog.experiments.report.formatting import interval_text, p_text, ratio_text


@dataclass(frozen=True)
class Answer:
    """The result of one learner: the headline, and the sentences that follow it."""

    learner: str
    headline: str
    sentences: Sequence[str]


def scope(summary: Summary) -> str:
    """One sentence on the runs that finished and the tasks that they were tested on."""
    count = f"{summary.finished}" if summary.expected is None else f"{summary.finished} of {summary.expected}"
    runs = "run" if count == "1" else "runs"
    if summary.problem or not summary.rows:
        return f"{count} {runs} finished."
    tasks = "task" if summary.tasks == 1 else "tasks"
    return f"{count} {runs} finished, each tested on the same {summary.tasks} {tasks}."


def answers(summary: Summary) -> list[Answer]:
    """For each learner, the methods that are significantly better than its best baseline."""
    return [_answer(summary, learner) for learner in summary.learners]


def answer_notes(summary: Summary) -> list[str]:
    """The definitions of the columns that compare methods with the best baseline, and their limits."""
    found = [row.to_baseline for row in summary.rows if row.to_baseline is not None]
    if not found:
        return []
    kind = metric(summary.metric)
    tested = [comparison for comparison in found if comparison.p_value is not None]
    units = {comparison.unit for comparison in tested}
    present = [label for label in BASELINES if any(row.label == label for row in summary.rows)]
    lines = []
    if len(present) > 1:
        lines.append(
            f"The best baseline is the one of {_listed(present)} with the better score in this table. Choosing it by "
            "the score that is compared favours the baseline."
        )
    pairs = " or ".join({"seeds": "seed", "tasks": "test task"}[unit] for unit in sorted(units - {"one"}))
    points = " in percentage points" if kind.percent else ""
    lower = "" if kind.higher_is_better else "; negative is better"
    if tested:
        lines.append(
            f"difference: method − baseline{points}, paired by {pairs}, with its 95 % confidence interval, which "
            f"is not corrected{lower}."
        )
        holm = f", corrected for {len(tested)} comparisons by Holm's procedure" if len(tested) > 1 else ""
        lines.append(f"p (Holm): two-sided paired t test{holm}; *: below 0.05.")
    if "tasks" in units:
        lines.append("With one seed the test is over test tasks: the variation between trainings is not in it.")
    busy = ", measured while other runs used the machine" if summary.parallel else ""
    lines.append(f"step time: ratio of the processor times of a training step{busy}; an indication, no benchmark.")
    lines += _seeds_note(summary, found)
    if any(row.chosen is not None for row in summary.rows):
        lines.append(_tuning(summary))
    return lines


def _answer(summary: Summary, learner: str) -> Answer:
    rows = summary.rows_of(learner)
    of = f"{learner}: " if len(summary.learners) > 1 else ""
    label = summary.best_baselines.get(learner)
    if label is None:
        text = (
            f"{of}No baseline ({' or '.join(BASELINES)}) has a finished run with a score, so no method can be compared."
        )
        return Answer(learner, text, ())
    base = next(row for row in rows if row.label == label)
    score = interval_text(base.score, summary.metric, alone=base.unit == "one") + metric(summary.metric).unit
    where = f"On {summary.problem} the" if summary.problem else "The"
    mean = ", the mean over its tasks" if summary.problem else ""
    sentences = [f"{where} best baseline is {label}, with a {summary.score_of('test')} of {score}{mean}."]
    compared = [(row, row.to_baseline) for row in rows if row.to_baseline is not None]
    better = [(row, found) for row, found in compared if found.verdict == "better"]
    worse = [(row, found) for row, found in compared if found.verdict == "worse"]
    undecided = [row.label for row, found in compared if found.verdict == "undecided"]
    unknown = [row.label for row, found in compared if found.verdict is None]
    unknown += [row.label for row in rows if row.to_baseline is None and row.label != label]
    if better:
        verb = "are" if len(better) > 1 else "is"
        headline = (
            f"{_listed(row.label for row, _ in better)} {verb} significantly better than the best baseline, {label}."
        )
    elif not compared or len(unknown) == len(rows) - 1:
        headline = f"No method can be tested against the best baseline, {label}."
    else:
        headline = f"No method is significantly better than the best baseline, {label}."
    sentences += [_significant(summary, row, found, "better") for row, found in better]
    sentences += [_significant(summary, row, found, "worse") for row, found in worse]
    if undecided:
        sentences.append(f"No significant difference to {label} was found for {_listed(undecided)}.")
    if unknown:
        sentences.append(f"There is no interval of the difference for {_listed(unknown)}.")
    return Answer(learner, of + headline, sentences)


def _significant(summary: Summary, row: Row, found: Comparison, word: str) -> str:
    kind = metric(summary.metric)
    difference = interval_text(found.difference, summary.metric, signed=True)
    points = " points" if kind.percent else f" in {kind.words}"
    cost = "" if found.time_ratio is None else f"; a step takes {ratio_text(found.time_ratio)} the time"
    p_value = p_text(found.adjusted_p_value)
    equals = p_value if p_value.startswith("<") else f"= {p_value}"
    return f"{row.label} is {word} by {difference}{points} (p {equals}){cost}."


def _seeds_note(summary: Summary, found: Sequence[Comparison]) -> list[str]:
    counts = [comparison.difference.n for comparison in found if comparison.seeds_needed is not None]
    if not counts:
        return []
    size = "one percentage point" if metric(summary.metric).percent else "5 % of the baseline's score"
    n = min(counts)
    low, high = deviation_factors(n)
    return [
        f"seeds for {detectable_words(summary)}: the number of seeds with which a true difference of {size} "
        "is detected with a power of 80 % (paired t test, two-sided 5 %, not corrected), from the observed spread of "
        f"the paired differences. The spread of {n} seeds is uncertain: with 95 % confidence the true one is between "
        f"{low:.2g} and {high:.2g} times as large, and the number of seeds grows with its square."
    ]


def _tuning(summary: Summary) -> str:
    if not summary.held_out:
        words = metric(summary.metric).words
        return (
            f"Tuned methods were chosen by the {words} in this report, which favours them over methods with one trial."
        )
    where = "by their validation scores" if summary.problem else "on validation tasks"
    return f"Tuned methods were chosen {where}; the intervals do not include the variation of that choice."


def _listed(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last

"""What a table says, in words that claim no more than its numbers: a paragraph, and captions for the figures."""

from __future__ import annotations

from collections.abc import Iterable

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.statistics import Interval
from gradhomog.experiments.analysis.summary import Row, Summary
from gradhomog.experiments.report.tables import interval_text
from gradhomog.experiments.results.plan import PLAIN


def reading(summary: Summary) -> str:
    """One paragraph. A method is called higher or lower than plain only if the interval excludes 0."""
    if not summary.rows:
        return "No run has finished, so nothing can be said yet."
    said = [_scope(summary)]
    for learner in summary.learners:
        said += _of_learner(summary, learner)
    said += _limits(summary)
    return " ".join(said)


def captions(summary: Summary) -> dict[str, str]:
    """What each figure shows, by its name."""
    units = {row.unit for row in summary.rows} - {"one"}
    names = {"seeds": "seeds", "tasks": "test tasks"}
    over = "seeds, or over test tasks for a single seed"
    if summary.problem or len(units) == 1:
        over = names[units.pop()] if units else "seeds, were there several"
    source = "task" if summary.problem else "domain that the test tasks come from"
    band = (
        "the band reaches from the lowest to the highest seed"
        if any(len(row.seeds) > 1 for row in summary.rows)
        else "one seed"
    )
    tested, judged = ("Test score", "Validation score") if summary.held_out else ("Score", "Score")
    smooth = f"Running mean over a tenth of training, averaged over seeds; {band}."
    return {
        "scores": f"{tested} of each method: mean and 95 % interval over {over}; small dots are seeds, the dashed "
        "line is the plain learner. Beside it, the paired difference to plain with its interval.",
        "domains": f"The same scores by the {source}: mean and 95 % interval over {over}.",
        "conflict": "How the tasks' gradients agree during training, before homogenization: the mean cosine between "
        f"the gradients of two tasks, and the norm of the longest over that of the shortest. {smooth}",
        "stages": "What each module does to the tasks' gradients: the mean cosine between two of them, the norm of the "
        "longest over that of the shortest, and the mean distance ‖gᵢ − gⱼ‖ of two over their mean norm, before any "
        "module and after each, in the order of the pipeline. A distance of 0 is one gradient for all tasks, √2 "
        "(dashed) equal lengths at right angles; a common factor changes none of the three. Where a method has dots "
        "only at validations, these are the encoder's gradients of one batch with and without each module at the same "
        "parameters; else all gradients of the training steps, a running mean over a tenth of training. Averaged over "
        "seeds. Gradients that agree are not yet a better network: the scores above say that.",
        "weights": "Each task's share in the step for the methods that reweight, 1 being the plain mean"
        + ("" if summary.problem else ": by training domain, or with a single one by rank within the step")
        + ". Running mean over a tenth of training, averaged over seeds.",
        "measured": "What the modules measured of themselves, by method: running mean over a tenth of training, "
        "averaged over seeds; of a quantity with a number for each task the mean, and a band from the lowest to the "
        "highest task. Angles are in radians.",
        "validation": f"{judged} during training, averaged over seeds; {band}."
        + (" The best one decides which state is tested." if summary.held_out else ""),
        "trajectories": "The path of each method over the mean of both losses, from every start (dots) to where the "
        "last step left it (crosses); the grey line is the set of Pareto optimal points, where neither loss can fall "
        "without the other rising.",
        "looks": "Query images of the first test tasks, the same for every method, under the tested network of the "
        "first seed. Saliency (SmoothGrad) is the derivative of the output of the true class by the pixels, averaged "
        "over noisy copies of the image, for the network adapted to the task and with every homogenizer removed: "
        "bright pixels change the output most. Each image is scaled to its own range, so brightness cannot be "
        "compared between images or methods. The number is the probability given to the true class: the saliency of "
        "a wrong answer explains a wrong answer. Maps of homogenizers, where there are any (of isi: the probability "
        "that an activation is dropped, by layer), are those of the network before adaptation, from 0 (dark) to the "
        "largest of the row. A few images show where to look and prove nothing: saliency that follows a shape is no "
        "evidence of better scores.",
    }


def _scope(summary: Summary) -> str:
    count = f"{summary.finished}" if summary.expected is None else f"{summary.finished} of {summary.expected}"
    runs = "run" if count == "1" else "runs"
    if summary.problem:
        return f"{count} {runs} finished."
    tasks = "task" if summary.tasks == 1 else "tasks"
    return f"{count} {runs} finished, each tested on the same {summary.tasks} {tasks}."


def _of_learner(summary: Summary, learner: str) -> list[str]:
    rows = summary.rows_of(learner)
    plain = next((row for row in rows if row.label == PLAIN), None)
    of = f" {learner}" if len(summary.learners) > 1 else ""
    kind = metric(summary.metric)
    if plain is None:
        who = f"The plain learner of {learner}" if summary.problem else f"Plain{of or ' ' + learner}"
        return [f"{who} has no finished run, so no method can be compared to it."]
    measure = kind.words
    score = interval_text(plain.score, summary.metric, alone=plain.unit == "one") + kind.unit
    if summary.problem:
        said = [f"On {learner} the plain learner has a {summary.score_of('test')} of {score}, the mean over its tasks."]
    else:
        said = [f"Plain {learner} has a {summary.score_of('test')} of {score}."]
    gap = " points" if kind.percent else ""
    for verdict, sign in (("better", 1), ("worse", -1)):
        found = [row for row in rows if row.verdict == verdict]
        word = "higher" if (sign > 0) == kind.higher_is_better else "lower"
        if found:
            texts = [
                f"{row.label} ({interval_text(_difference(row), summary.metric, signed=True)}{gap})" for row in found
            ]
            verb = "have" if len(found) > 1 else "has"
            said.append(f"{_listed(texts)} {verb} {word} {measure} than plain{of}: the 95 % interval excludes 0.")
    undecided = [row.label for row in rows if row.verdict == "undecided"]
    if undecided:
        said.append(
            f"For {_listed(undecided)} the interval of the difference includes 0: these runs do not tell "
            f"{'them' if len(undecided) > 1 else 'it'} apart from plain{of}."
        )
    unknown = [row.label for row in rows if row.label != PLAIN and row.verdict is None]
    if unknown:
        said.append(f"For {_listed(unknown)} there is no interval of the difference to plain{of}.")
    return said


def _limits(summary: Summary) -> list[str]:
    said: list[str] = []
    compared = [row for row in summary.rows if row.verdict is not None]
    if any(row.difference_unit == "seeds" for row in compared):
        n = min(row.difference.n for row in compared if row.difference and row.difference_unit == "seeds")
        few = f"With {n} seeds an interval is wide; a" if n < 10 else "A"
        said.append(f"{few} difference that an interval does not show may still exist.")
    if any(row.difference_unit == "tasks" for row in compared):
        said.append(
            "Where a single seed was compared, the interval is over test tasks and leaves out how trainings vary."
        )
    if len(compared) > 1:
        said.append(
            f"With {len(compared)} comparisons at 95 %, one in twenty excludes 0 by chance where nothing differs."
        )
    if any(row.chosen is not None for row in summary.rows):
        said.append(_of_tuning(summary))
    return said


def _of_tuning(summary: Summary) -> str:
    if not summary.held_out:
        words = metric(summary.metric).words
        return f"Tuned methods were chosen by the {words} shown here, which favours them over those with one try."
    where = "by their validation scores" if summary.problem else "on validation tasks"
    return f"Tuned methods were chosen {where}; the intervals leave out how the choice varies."


def _difference(row: Row) -> Interval:
    assert row.difference is not None  # a verdict is only given on a difference
    return row.difference


def _listed(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last

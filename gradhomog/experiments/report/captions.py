"""Titles and captions of the figures."""

from __future__ import annotations

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.summary import Summary

TITLES = {
    "scores": "Scores and differences",
    "domains": "Scores by domain",
    "validation": "Validation curves",
    "conflict": "Agreement of task gradients",
    "stages": "Effect of each homogenizer on the gradients",
    "weights": "Task weights",
    "trajectories": "Trajectories",
    "saliency": "Saliency",
}
"""Titles by figure name, in the order of the page."""


def captions(summary: Summary) -> dict[str, str]:
    """The caption of each figure, by name."""
    units = {row.unit for row in summary.rows} - {"one"}
    names = {"seeds": "seeds", "tasks": "test tasks"}
    over = "seeds, or over test tasks for a single seed"
    if summary.problem or len(units) == 1:
        over = names[units.pop()] if units else "seeds (here a single seed)"
    source = "task" if summary.problem else "domain of the test tasks"
    several = any(len(row.seeds) > 1 for row in summary.rows)
    band = "bands are the range over seeds" if several else "one seed"
    tested = "Test score" if summary.held_out else "Score"
    validated = "Validation score" if summary.held_out else "Score"
    smooth = f"Running mean over a tenth of training, averaged over seeds; {band}."
    intervals = "the band is the 95 % confidence interval over seeds" if several else "one seed"
    return {
        "scores": f"{tested} of each method: mean and 95 % confidence interval over {over}. Small dots are seeds; the "
        "dashed line is the plain learner. Right panel: the paired difference to plain with its interval, which is not "
        "corrected for the number of methods.",
        "domains": f"The same scores by {source}: mean and 95 % confidence interval over {over}.",
        "conflict": "Agreement of the task gradients during training, before homogenization: the mean cosine between "
        f"the gradients of two tasks, and the ratio of the largest to the smallest gradient norm. {smooth}",
        "stages": "The task gradients before the first homogenizer and after each homogenizer, in the order of the "
        "pipeline: the mean cosine between the gradients of two tasks, the ratio of the largest to the smallest norm, "
        "and the mean distance ‖gᵢ − gⱼ‖ divided by the mean norm. A distance of 0 means equal gradients; √2 (dashed) "
        "means orthogonal gradients of equal norm. A common factor of all gradients does not change these values. "
        "Methods with dots at validations only: encoder gradients of one batch with and without each homogenizer at "
        "the same parameters. Other methods: gradients of the training steps, running mean over a tenth of training. "
        "Averaged over seeds. Gradients that agree do not imply a better network.",
        "weights": "Weight of each task in the step, for methods that reweight; 1 is the plain mean. Lines: one per "
        + ("task" if summary.problem else "training domain; for a single domain, one per rank within the step")
        + ". Running mean over a tenth of training, averaged over seeds.",
        "validation": f"{validated} during training, averaged over seeds; {intervals}."
        + (" The network with the best validation score is tested." if summary.held_out else ""),
        "trajectories": "The path of each method on the mean of both losses, from each start (dots) to the last step "
        "(crosses). The grey line is the set of Pareto optimal points, where neither loss can decrease without an "
        "increase of the other.",
        "saliency": "Query images of the first test tasks, the same for every method, with the tested network of the "
        "first seed. Saliency (SmoothGrad) is the derivative of the output of the true class w.r.t. the pixels, "
        "averaged over noisy copies of the image, for the network adapted to the task, without homogenizers: the "
        "output is most sensitive to bright pixels. Each image is scaled to its own range, so brightness is not "
        "comparable between images or methods. The number is the probability of the true class. Maps of homogenizers "
        "(for isi: the probability that an activation is dropped, by layer) are those of the network before "
        "adaptation, from 0 (dark) to the largest value of the row. A few images are no evidence of better scores.",
    }


def tuning_note(summary: Summary) -> str:
    """Sentences that describe how the candidates of tuned methods were compared."""
    if summary.held_out:
        return (
            f"Each candidate was trained with seed {summary.candidates[0].seed}; the candidate with the best "
            "validation score was trained with all seeds. Test scores do not affect the choice."
        )
    return (
        f"The row of a tuned method is its candidate with the best {metric(summary.metric).words} in this report, "
        "because no validation data are held out: it is the best of several trials."
    )

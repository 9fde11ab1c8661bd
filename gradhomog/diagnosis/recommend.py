"""Recommendation of a diagnosis: rules on confidence intervals, each with a code and a plain sentence."""

from __future__ import annotations

from collections.abc import Iterator

from gradhomog.diagnosis.conflict_rules import conflict, harm
from gradhomog.diagnosis.estimates import MIN_BATCHES
from gradhomog.diagnosis.noise_rules import noise, shared_noise
from gradhomog.diagnosis.norm_rules import heavy_tails, norms_are_similar, norms_differ
from gradhomog.diagnosis.result import DiagnosisResult, Recommendation
from gradhomog.diagnosis.rule_parts import join, zero_tasks


def summed_loss() -> Recommendation:
    """The sentence for parallel rows."""
    return Recommendation(
        "summed_loss",
        "the rows of every batch are multiples of one gradient: probably the gradient of the summed loss was passed "
        "for each task. Differentiate the loss of each task separately.",
    )


def accumulated_rows() -> Recommendation:
    """The sentence for rows that contain earlier ones."""
    return Recommendation(
        "accumulated_rows",
        "each row contains the earlier ones, g₁, g₁ + g₂, …: probably gradients were read from `.grad` without "
        "`zero_grad()` before each `backward()`. Use `Diagnosis.add_losses`, or `torch.autograd.grad`. Rows that grow "
        "from batch to batch because the parameters change are not valid either: measure at fixed parameters.",
    )


def mistakes(found: DiagnosisResult) -> Iterator[Recommendation]:
    """The total loss among the tasks, dependent rows, zero rows, and rare tasks."""
    for name in found.summed:
        yield Recommendation(
            "total_as_task",
            f"the row of {name} is a multiple of the sum of the other rows in every batch: probably it is the gradient "
            "of the total loss. Remove it from the tasks.",
        )
    if found.dependent and not found.summed:
        yield Recommendation(
            "dependent_rows",
            "the rows of every batch are linearly dependent: probably a task is a weighted sum of others, such as the "
            "total loss. Remove it, unless the shared parameters have fewer outputs than there are tasks.",
        )
    if zero := [found.tasks[task] for task in zero_tasks(found)]:
        yield Recommendation(
            "zero_gradient",
            f"all rows of {join(zero)} are zero: the loss is at a minimum, or does not depend on the parameters.",
        )
    if found.left_out:
        names = [f"{name} ({count} batch{'' if count == 1 else 'es'})" for name, count in found.left_out.items()]
        yield Recommendation(
            "rare_task",
            f"left out, as estimates require rows of a task in {MIN_BATCHES} batches: {join(names)}. Measure more "
            "batches.",
        )


def recommend(found: DiagnosisResult) -> tuple[Recommendation, ...]:
    """Apply all rules; the most important sentence is the first. The guide lists codes and conditions.

    Real conflict is claimed for a pair if the interval of its inner product is below zero after Bonferroni's correction
    for the number of pairs; that there is none, if the intervals of all pairs are above zero, or negligible.
    """
    if found.accumulated:
        return (accumulated_rows(),)
    if found.parallel:
        return (summed_loss(),)
    rules = (mistakes, harm, conflict, norms_differ, heavy_tails, noise, shared_noise)
    sentences = [sentence for rule in rules for sentence in rule(found)]
    codes = {sentence.code for sentence in sentences}
    if "no_conflict" in codes and not codes & {"row_norms_differ", "heavy_tails"} and norms_are_similar(found):
        sentences.append(
            Recommendation(
                "plain_mean",
                "expected gradients do not conflict, and those of different direction have similar norms: use the "
                "plain mean.",
            )
        )
    return tuple(sentences)

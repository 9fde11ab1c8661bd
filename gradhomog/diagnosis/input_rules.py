"""Rules for rows that are probably not gradients of separate losses, and for tasks without rows or signal."""

from __future__ import annotations

from collections.abc import Iterator

from gradhomog.diagnosis.estimates import MIN_BATCHES
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

"""Select the losses that a pipeline's homogenizers choose, before any of them is differentiated."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed import ProcessGroup

from gradhomog.autograd.batch import LossLeaves
from gradhomog.autograd.inputs import TaskLosses
from gradhomog.pipelines import Pipeline
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.dtensors import collectives_if_dtensors
from gradhomog.ranks.ranks import Ranks
from gradhomog.task_key import slot_keys


def leaves_of_the_step(
    pipe: Pipeline, given: LossLeaves, domains: Sequence[str] | None, collectives: Collectives | None,
    group: Ranks | ProcessGroup | None,
) -> tuple[LossLeaves, Collectives | None]:  # fmt: skip
    """Return the chosen losses with their leaves, and the collectives, which DTensors need also on one rank.

    Raises:
        RankError: ranks would choose different tasks.
    """
    agree_on_present(pipe, given.tasks, collectives)
    chosen = select_chosen(pipe, given, domains)
    collectives = collectives_if_dtensors(collectives, chosen.shared, group)
    return (chosen if collectives is None else chosen.without_inputs()), collectives


def select_chosen(pipe: Pipeline, loss_leaves: LossLeaves, domains: Sequence[str] | None) -> LossLeaves:
    """Return the chosen losses with their leaves; the others are then absent from the step.

    `domains`: one name per task, or None for the names of the losses.
    """
    if not pipe.stages.choosing:
        return loss_leaves
    tasks = loss_leaves.tasks
    names = tasks.select_present(domains or tasks.names, "domains")
    return loss_leaves.select(pipe.choose(slot_keys(tasks.slots, names)))


def agree_on_present(pipe: Pipeline, tasks: TaskLosses, collectives: Collectives | None) -> None:
    """Raise unless all ranks have losses of the same tasks, if homogenizers choose among them.

    A rank on which another task is absent could choose others.

    Raises:
        RankError: on all ranks.
    """
    if collectives is None or collectives.ranks.local or collectives.ranks.over == "tasks":
        return
    if pipe.stages.choosing:
        collectives.agree(
            len(tasks.slots), {"calls": "choice", "tasks to choose from": (tasks.slots, tasks.names)}, last=False
        )


def may_be_unused(pipe: Pipeline, use_shared: bool) -> bool:
    """True if the chosen losses need not depend on the shared parameters, because others do, now or in earlier steps.

    `use_shared`: see `LossLeaves`.
    """
    return bool(pipe.stages.choosing) and (use_shared or pipe.steps > 0 or bool(pipe.parts))

"""Select the losses that a pipeline's homogenizers choose, before any of them is differentiated."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch.distributed import ProcessGroup

from gradhomog.autograd.batch import LossLeaves
from gradhomog.autograd.distributed.mean_losses import numbers_of_examples
from gradhomog.errors import OptionError
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.dtensors import collectives_if_dtensors
from gradhomog.ranks.ranks import Ranks
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.task_key import task_keys

COLLECTIVE = re.compile("sync_?batch_?norm|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
"""Names of autograd nodes whose backward passes have collective operations."""


def leaves_of_the_step(
    pipe: Pipeline, given: LossLeaves, domains: Sequence[str] | None, collectives: Collectives | None,
    group: Ranks | ProcessGroup | None,
) -> tuple[LossLeaves, Collectives | None]:  # fmt: skip
    """Return the chosen losses with their leaves, and the collectives, which DTensors need also on one rank.

    Raises:
        RankError: ranks would choose different tasks.
    """
    agree_on_present(given, bool(pipe.stages.choosing), collectives)
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
    return loss_leaves.select(pipe.choose(task_keys(tasks.slots, names)))


def agree_on_present(given: LossLeaves, choosing: bool, collectives: Collectives | None) -> None:
    """Raise unless all ranks have losses of the same tasks, where this is required.

    Homogenizers that choose among the tasks could choose others on a rank on which one is absent. A backward pass with
    collective operations waits for those of the other ranks.

    Raises:
        OptionError: on this rank, a loss without examples is not finite, but other ranks wait for its backward pass.
        RankError: on all ranks.
    """
    if collectives is None or collectives.ranks.local or collectives.ranks.over == "tasks":
        return
    tasks, same = given.tasks, dict[str, object]()
    if choosing:
        same["tasks to choose from"] = tasks.slots, tasks.names
    if given.sharded or any(map(COLLECTIVE.search, {node.name() for node in given.nodes})):
        same["present tasks"] = tasks.slots
        examples = numbers_of_examples(tasks.slots, collectives)
        for index, (loss, number) in enumerate(zip(tasks.losses, examples, strict=True)):
            if number == 0 and not loss.isfinite():
                raise OptionError(
                    f"the loss of task {tasks.label(index)} must be finite, although its `examples` are 0 on this "
                    "rank, because other ranks wait for its backward pass, through fully_shard, SyncBatchNorm or "
                    f"another collective operation; got {loss.item()}. Pass a loss that depends on the outputs, such "
                    "as 0 * output.sum()."
                )
    if same:
        collectives.agree(len(tasks.slots), {"calls": "losses", **same}, last=False)


def may_be_unused(pipe: Pipeline, use_shared: bool) -> bool:
    """True if the chosen losses need not depend on the shared parameters, because others do, now or in earlier steps.

    `use_shared`: see `LossLeaves`.
    """
    return bool(pipe.stages.choosing) and (use_shared or pipe.steps > 0)

"""A step of tasks that are distributed over ranks: each rank sends the rows of its tasks."""

from __future__ import annotations

import torch

from gradhomog.autograd.apply import ComputedStep, Options
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.distributed.agreement import replicas_to_compare, used_by_this_rank, values_to_compare
from gradhomog.autograd.distributed.rows import RowsOfRanks
from gradhomog.autograd.lazy import LazyJacobian
from gradhomog.autograd.parameter_groups import group_names
from gradhomog.errors import OptionError
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.exchange import collect_tasks
from gradhomog.ranks.replicas import check_replicas, digests
from gradhomog.step.pipelines import Pipeline


def tasks_step(
    pipe: Pipeline, batch: Batch, jacobian: LazyJacobian, options: Options, collectives: Collectives
) -> ComputedStep:
    """Homogenize the rows of the tasks of all ranks, in the order of the ranks.

    Raises:
        OptionError: a loss depends on a head, whose gradients other ranks would not receive.
    """
    tasks = batch.tasks
    if any(batch.unshared_leaves):
        raise OptionError(
            "with Ranks('tasks') every trained tensor that a loss depends on must be in `parameters`, because other "
            "ranks would not receive the gradients of heads; a loss depends on others. Pass all parameters of the "
            "model."
        )
    same = values_to_compare(pipe, batch, options, collectives.ranks, "step")
    counts = collectives.agree(
        len(tasks.slots), {**same, "tasks": "with names" if options.domains else "without names"}
    )
    totals = collectives.all_gather_numbers([tasks.tasks])[:, 0]
    first_slot = totals[: collectives.rank].sum()
    padding = [0.0] * (max(counts) - len(tasks.slots))
    slots = [float(first_slot) + slot for slot in tasks.slots]
    values = [loss.item() for loss in tasks.losses]
    compared = replicas_to_compare(pipe, batch, collectives.ranks)
    own = [*used_by_this_rank(jacobian), *digests(compared.values())]
    gathered = collectives.all_gather_numbers([*values, *padding, *slots, *padding, *own])
    sizes = [max(counts), max(counts), len(jacobian.names), len(compared)]
    losses, all_slots, used, elements_of_all = torch.split(gathered, sizes, dim=1)
    check_replicas(compared, elements_of_all)
    present = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    names = [options.domains[slot] for slot in tasks.slots] if options.domains else []
    domains = collectives.all_gather_names(names) if options.domains else None
    groups = group_names(jacobian.names, options.per).values()
    split = ColumnSplit(jacobian.row_like(), collectives.size, collectives.rank, groups)
    rows = collect_tasks(jacobian.row, counts, split, collectives)
    slots_of_all = [int(slot) for slot in all_slots[present].tolist()]
    found = RowsOfRanks(rows, losses[present], slots_of_all, domains, lambda: used, list)
    return found.homogenize(pipe, batch, options)

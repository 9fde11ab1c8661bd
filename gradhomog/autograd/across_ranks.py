"""Homogenize gradients of losses whose tasks or examples are distributed over several ranks."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradhomog.autograd.apply import ComputedStep, Options, compute_step, head_factors, infinite_step
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.batch_over_ranks import batch_step, fully_sharded_step, head_shapes
from gradhomog.autograd.lazy import LazyJacobian, reads_rows
from gradhomog.autograd.rows_of_ranks import RowsOfRanks, must_agree, replicas_to_compare, shared_gradients
from gradhomog.errors import OptionError
from gradhomog.pipelines import Pipeline
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.exchange import average, collect_tasks
from gradhomog.ranks.fully_sharded import is_sharded
from gradhomog.ranks.ranks import Ranks
from gradhomog.ranks.replicas import check_replicas, first_elements
from gradhomog.ranks.shards import Shards


def check_ranks(ranks: Ranks, pipe: Pipeline, options: Options, create_graph: bool) -> None:
    """Raise for pipelines and options that are not supported across ranks.

    Raises:
        OptionError: the message names the homogenizer or the option.
    """
    ranks.check_pipeline(pipe)
    if create_graph:
        raise OptionError("`create_graph` must be False across ranks: their exchange of rows is not differentiable.")
    if options.level != "parameters" and (ranks.local or ranks.over == "tasks"):
        raise OptionError(
            f"level='features' requires Ranks('batch'), whose ranks have examples of the same tasks; got {ranks}."
        )
    if ranks.local:
        return
    if options.per != "model":
        raise OptionError(
            f"across ranks `per` must be 'model'; got {options.per!r}. Use Ranks(local=True) to homogenize groups of "
            "parameters separately on every rank."
        )
    for statistic in ("features", "kernel_traces") if ranks.over == "tasks" else ():
        if found := [m.selector for m in pipe.members if m.declares_needs and statistic in m.needs]:
            raise OptionError(
                f"{' and '.join(found)} reads {statistic.replace('_', ' ')}, which ranks with different tasks do not "
                "exchange here. Use a learner, Ranks('tasks', local=True), or another homogenizer."
            )


def compute_across_ranks(pipe: Pipeline, batch: Batch, options: Options, collectives: Collectives) -> ComputedStep:
    """Homogenize the rows of all ranks; every rank receives the same direction.

    Raises:
        RankError: another rank raised before, or has other parameters, tasks or states.
        NonfiniteError, PluginRunError: on all ranks; nothing was written, no state assigned.
    """
    if any(is_sharded(parameter) for parameter in batch.derivatives.graph.shared.values()):
        return fully_sharded_step(pipe, batch, options, collectives)
    ranks = collectives.ranks
    if ranks.over == "batch" and not ranks.local:
        return batch_step(pipe, batch, options, collectives)
    eager = not ranks.local or reads_rows(pipe, options.per, options.scaled)
    jacobian = LazyJacobian(batch.derivatives, eager=eager, may_be_unused=True)
    if ranks.local:
        return _local_step(pipe, batch, jacobian, options, collectives)
    return _tasks_step(pipe, batch, jacobian, options, collectives)


def _tasks_step(
    pipe: Pipeline, batch: Batch, jacobian: LazyJacobian, options: Options, collectives: Collectives
) -> ComputedStep:
    tasks = batch.tasks
    if any(batch.unshared_leaves):
        raise OptionError(
            "with Ranks('tasks') every trained tensor that a loss depends on must be in `parameters`, because other "
            "ranks would not receive the gradients of heads; a loss depends on others. Pass all parameters of the "
            "model."
        )
    same = must_agree(pipe, batch, options, collectives.ranks, "step")
    counts = collectives.agree(
        len(tasks.slots), {**same, "tasks": "with names" if options.domains else "without names"}
    )
    totals = collectives.all_gather_numbers([tasks.tasks])[:, 0]
    first_slot = totals[: collectives.rank].sum()
    padding = [0.0] * (max(counts) - len(tasks.slots))
    slots = [float(first_slot) + slot for slot in tasks.slots]
    values = [loss.item() for loss in tasks.losses]
    compared = replicas_to_compare(pipe, batch)
    elements = first_elements(list(compared.values()))
    gathered = collectives.all_gather_numbers([*values, *padding, *slots, *padding, *_used(jacobian), *elements])
    sizes = [max(counts), max(counts), len(jacobian.names), len(compared)]
    losses, all_slots, used, elements_of_all = torch.split(gathered, sizes, dim=1)
    check_replicas(list(compared), elements_of_all)
    present = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    names = [options.domains[slot] for slot in tasks.slots] if options.domains else []
    domains = collectives.all_gather_names(names) if options.domains else None
    shards = Shards(jacobian.row_like(), collectives.size, collectives.rank)
    rows = collect_tasks(jacobian.row, counts, shards, collectives)
    slots_of_all = [int(slot) for slot in all_slots[present].tolist()]
    found = RowsOfRanks(rows, losses[present], slots_of_all, domains, lambda: used, list)
    return found.homogenize(pipe, batch, options)


def _local_step(
    pipe: Pipeline, batch: Batch, jacobian: LazyJacobian, options: Options, collectives: Collectives
) -> ComputedStep:
    """Homogenize the rows of this rank, and average directions and gradients of heads over the ranks."""
    domains = tuple(options.domains[slot] for slot in batch.tasks.slots) if options.domains else ()
    step = compute_step(pipe, batch, jacobian, replace(options, domains=domains))
    same = must_agree(pipe, batch, options, collectives.ranks, "step")
    counts = collectives.agree(len(step.result.tasks), {**same, "heads": head_shapes(batch)})
    if not all(counts):
        return infinite_step(batch)  # of a gradient scaler, on at least one rank
    graph = batch.derivatives.graph
    direction = average(step.result.direction, step.result.direction, collectives)
    compared = replicas_to_compare(pipe, batch)
    gathered = collectives.all_gather_numbers([*_used(jacobian), *first_elements(list(compared.values()))])
    used, elements_of_all = torch.split(gathered, [len(jacobian.names), len(compared)], dim=1)
    check_replicas(list(compared), elements_of_all)
    result = replace(step.result, direction=direction, exchanged="directions")
    factors = head_factors(step.result, options.heads)
    # All leaves, because ranks may have dropped different tasks.
    own = [
        (leaf, factors[slot] * gradient if gradient is not None and slot in factors else None)
        for slot, pairs in zip(batch.tasks.slots, batch.unshared_gradients, strict=True)
        for leaf, gradient in pairs
    ]
    leaves = {str(index): leaf for index, (leaf, _) in enumerate(own)}
    means = average({str(index): gradient for index, (_, gradient) in enumerate(own)}, leaves, collectives)
    heads = [(leaf, mean) for leaf, mean in zip(leaves.values(), means.values(), strict=True)]
    return ComputedStep(result, shared_gradients(graph.shared, graph.factor, direction, used), heads, step.pending)


def _used(jacobian: LazyJacobian) -> list[float]:
    return [float(name not in jacobian.unused) for name in jacobian.names]

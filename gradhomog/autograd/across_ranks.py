"""Homogenize gradients of losses whose tasks or examples are distributed over several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradhomog.autograd.apply import ComputedStep, Gradients, Options, compute_step, head_factors, infinite_step
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.inputs import TaskLosses
from gradhomog.autograd.lazy import LazyJacobian, require_used
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.pipelines import Pipeline
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.exchange import average, collect_tasks, sum_batches, sum_tensors
from gradhomog.ranks.ranks import Ranks
from gradhomog.ranks.sharded import ShardedJacobian
from gradhomog.ranks.shards import Shards


def check_ranks(ranks: Ranks, pipe: Pipeline, options: Options, create_graph: bool) -> None:
    """Raise for pipelines and options that are not supported across ranks.

    Raises:
        OptionError: the message names the homogenizer or the option.
    """
    ranks.check_pipeline(pipe)
    if options.level != "parameters":
        raise OptionError("across ranks `level` must be 'parameters'; got 'features'.")
    if create_graph:
        raise OptionError("`create_graph` must be False across ranks: their exchange of rows is not differentiable.")
    if ranks.local:
        return
    if options.per != "model":
        raise OptionError(
            f"across ranks `per` must be 'model'; got {options.per!r}. Use Ranks(local=True) to homogenize groups of "
            "parameters separately on every rank."
        )
    for statistic in ("features", "kernel_traces"):
        if found := [m.selector for m in pipe.members if m.declares_needs and statistic in m.needs]:
            raise OptionError(
                f"{' and '.join(found)} reads {statistic.replace('_', ' ')}, which ranks do not exchange here. Use "
                "Ranks(..., local=True), or another homogenizer."
            )


def compute_across_ranks(pipe: Pipeline, batch: Batch, options: Options, collectives: Collectives) -> ComputedStep:
    """Homogenize the rows of all ranks; every rank receives the same direction.

    Raises:
        RankError: another rank raised before, or has other parameters, tasks or states.
        NonfiniteError, PluginRunError: on all ranks; nothing was written, no state assigned.
    """
    jacobian = LazyJacobian(batch.derivatives, eager=True, may_be_unused=True)
    if collectives.ranks.local:
        return _local_step(pipe, batch, jacobian, options, collectives)
    step = _batch_step if collectives.ranks.over == "batch" else _tasks_step
    return step(pipe, batch, jacobian, options, collectives)


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
    counts = collectives.agree(len(tasks.slots), *_identity(pipe, batch), bool(options.domains))
    totals = collectives.all_gather_numbers([tasks.tasks])[:, 0]
    first_slot = totals[: collectives.rank].sum()
    padding = [0.0] * (max(counts) - len(tasks.slots))
    slots = [float(first_slot) + slot for slot in tasks.slots]
    values = [loss.item() for loss in tasks.losses]
    gathered = collectives.all_gather_numbers([*values, *padding, *slots, *padding, *_used(jacobian)])
    losses, all_slots, used = torch.split(gathered, [max(counts), max(counts), len(jacobian.names)], dim=1)
    present = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    names = [options.domains[slot] for slot in tasks.slots] if options.domains else []
    domains = collectives.all_gather_names(names) if options.domains else None
    shards = Shards(jacobian.row_like(), collectives.size, collectives.rank)
    rows = collect_tasks(jacobian.row, counts, shards, collectives)
    found = _Rows(rows, losses[present], [int(slot) for slot in all_slots[present].tolist()], domains, used)
    return _homogenize(pipe, batch, found, options, [])


def _batch_step(
    pipe: Pipeline, batch: Batch, jacobian: LazyJacobian, options: Options, collectives: Collectives
) -> ComputedStep:
    tasks = batch.tasks
    examples = _examples(collectives.ranks, tasks)
    collectives.agree(tasks.tasks, *_identity(pipe, batch), tasks.tasks, options.domains, _head_shapes(batch))
    local = dict(zip(tasks.slots, (loss.item() for loss in tasks.losses), strict=True))
    values = [local.get(slot, 0.0) for slot in range(tasks.tasks)]
    gathered = collectives.all_gather_numbers([*examples, *values, *_used(jacobian)])
    counts, losses, used = torch.split(gathered, [tasks.tasks, tasks.tasks, len(jacobian.names)], dim=1)
    totals = counts.sum(0)
    slots = [slot for slot, total in enumerate(totals.tolist()) if total > 0]
    if not slots:
        raise OptionError("`examples` must be positive for at least one task on one rank; got 0 everywhere.")
    shares = counts[:, slots] / totals[slots]
    mean_losses = torch.where(shares > 0, shares * losses[:, slots], 0.0).sum(0)
    own = dict(zip(slots, shares[collectives.rank].tolist(), strict=True))
    rows_of = {slot: index for index, slot in enumerate(tasks.slots) if own.get(slot, 0.0) > 0}
    shards = Shards(jacobian.row_like(), collectives.size, collectives.rank)
    entries = [(jacobian.row(rows_of[slot]), own[slot]) if slot in rows_of else None for slot in slots]
    domains = [options.domains[slot] for slot in slots] if options.domains else None
    found = _Rows(sum_batches(entries, shards, collectives), mean_losses, slots, domains, used)
    return _homogenize(pipe, batch, found, options, _sum_of_heads(batch, own, collectives))


def _local_step(
    pipe: Pipeline, batch: Batch, jacobian: LazyJacobian, options: Options, collectives: Collectives
) -> ComputedStep:
    """Homogenize the rows of this rank, and average directions and gradients of heads over the ranks."""
    domains = tuple(options.domains[slot] for slot in batch.tasks.slots) if options.domains else ()
    step = compute_step(pipe, batch, jacobian, replace(options, domains=domains))
    counts = collectives.agree(len(step.result.tasks), *_identity(pipe, batch), _head_shapes(batch))
    if not all(counts):
        return infinite_step(batch)  # of a gradient scaler, on at least one rank
    graph = batch.derivatives.graph
    direction = average(step.result.direction, collectives)
    used = collectives.all_gather_numbers(_used(jacobian))
    result = replace(step.result, direction=direction, exchanged="directions")
    means = average({str(index): gradient for index, (_, gradient) in enumerate(step.unshared)}, collectives)
    heads = [(leaf, mean) for (leaf, _), mean in zip(step.unshared, means.values(), strict=True)]
    return ComputedStep(result, _shared_gradients(graph.shared, graph.factor, direction, used), heads, step.pending)


@dataclass(frozen=True)
class _Rows:
    """The rows of all ranks, with the losses, slots and domains of their tasks.

    `used`: for each rank and parameter, 1 if a loss of that rank depends on it, `[ranks, parameters]`.
    """

    jacobian: ShardedJacobian
    losses: Tensor
    slots: Sequence[int]
    domains: Sequence[str] | None
    used: Tensor


def _homogenize(pipe: Pipeline, batch: Batch, rows: _Rows, options: Options, heads: _Heads) -> ComputedStep:
    graph = batch.derivatives.graph
    if not rows.used.any():
        require_used(graph.shared, frozenset(graph.shared))
    try:
        pending = pipe.compute(
            rows.jacobian, rows.losses.to(rows.jacobian.device), domains=rows.domains, slots=rows.slots,
            inspect=options.inspect, nonfinite="raise" if options.scaled else None,
        )  # fmt: skip
    except NonfiniteError:
        if not options.scaled:
            raise
        return infinite_step(batch)
    result = replace(pending.result, exchanged="rows")
    factors = head_factors(result, options.heads)
    unshared = [(leaf, factors[slot] * gradient) for slot, leaf, gradient in heads if slot in factors]
    shared = _shared_gradients(graph.shared, graph.factor, result.direction, rows.used)
    return ComputedStep(result, shared, unshared, [pending])


def _shared_gradients(
    shared: Mapping[str, Tensor], factor: float, direction: Mapping[str, Tensor], used: Tensor
) -> Gradients:
    """Return the gradients of the parameters that a loss of any rank depends on, the same on all ranks."""
    named = zip(direction.items(), used.any(0).tolist(), strict=True)
    return [
        (shared[name], gradient if factor == 1 else factor * gradient)
        for (name, gradient), needed in named
        if needed or bool(gradient.any())  # of rows that a homogenizer kept from earlier steps
    ]


def _used(jacobian: LazyJacobian) -> list[float]:
    return [float(name not in jacobian.unused) for name in jacobian.names]


def _examples(ranks: Ranks, tasks: TaskLosses) -> list[float]:
    """Return the number of examples of every task on this rank, 0 for absent tasks.

    Raises:
        OptionError: the number of entries is not that of the tasks.
    """
    given = 1.0 if ranks.examples is None else ranks.examples
    numbers = [float(given)] * tasks.tasks if isinstance(given, int | float) else [float(number) for number in given]
    if len(numbers) != tasks.tasks:
        raise OptionError(
            f"`examples` must be a number or one number for each of the {tasks.tasks} tasks; got {len(numbers)}."
        )
    return [number if slot in tasks.slots else 0.0 for slot, number in enumerate(numbers)]


# -- heads -------------------------------------------------------------------------------------------------------------

_Heads = list[tuple[int, Tensor, Tensor]]
"""Slot of the task, leaf, and gradient."""


def _head_shapes(batch: Batch) -> list[tuple[int, list[tuple[int, ...]]]]:
    """Return the shapes of the leaves of each task that has a head, which must be the same on all ranks."""
    pairs = zip(batch.tasks.slots, batch.unshared_leaves, strict=True)
    return [(slot, [tuple(leaf.shape) for leaf in leaves]) for slot, leaves in pairs if leaves]


def _sum_of_heads(batch: Batch, shares: Mapping[int, float], collectives: Collectives) -> _Heads:
    """Return the gradients of the heads, summed over the ranks with the shares of their tasks."""
    pairs = [
        (slot, leaf, torch.zeros_like(leaf, requires_grad=False) if gradient is None else shares[slot] * gradient)
        for slot, gradients in zip(batch.tasks.slots, batch.unshared_gradients, strict=True)
        for leaf, gradient in gradients
        if slot in shares
    ]
    sums = sum_tensors({str(index): gradient for index, (*_, gradient) in enumerate(pairs)}, collectives)
    return [(slot, leaf, total) for (slot, leaf, _), total in zip(pairs, sums.values(), strict=True)]


def _identity(pipe: Pipeline, batch: Batch) -> tuple[Any, ...]:
    """Return what must be the same on all ranks: names, shapes and dtypes of the parameters, and the pipeline."""
    shared = [(name, tuple(value.shape), value.dtype) for name, value in batch.derivatives.graph.shared.items()]
    return shared, str(pipe), pipe.steps

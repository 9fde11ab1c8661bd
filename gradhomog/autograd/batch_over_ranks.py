"""A step of tasks whose examples are distributed over ranks: each rank has all tasks, on its part of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradhomog.autograd.apply import ComputedStep, Options
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.features_over_ranks import FeatureRows, gather_features
from gradhomog.autograd.fully_sharded import FullyShardedDerivatives
from gradhomog.autograd.inputs import TaskLosses
from gradhomog.autograd.lazy import reads_rows
from gradhomog.autograd.lazy_over_ranks import LazyShardedJacobian
from gradhomog.autograd.rows_of_ranks import HeadGradients, RowsOfRanks, must_agree, replicas_to_compare
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.jacobian import DenseJacobian, Jacobian, PerTaskJacobian
from gradhomog.pipelines import Pipeline
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.exchange import sum_tensors
from gradhomog.ranks.fully_sharded import FullyShardedJacobian, check_sharding, distribute, local_part
from gradhomog.ranks.ranks import Ranks
from gradhomog.ranks.replicas import check_replicas, first_elements
from gradhomog.step import KernelTraces


def batch_step(pipe: Pipeline, batch: Batch, options: Options, collectives: Collectives) -> ComputedStep:
    """Homogenize the rows Σ_r w_ri J_ri."""
    tasks = batch.tasks
    examples = _examples(collectives.ranks, tasks)
    collectives.agree(tasks.tasks, {
        **must_agree(pipe, batch, options, collectives.ranks, "step"),
        "tasks": (tasks.tasks, options.domains), "heads": head_shapes(batch),
    })  # fmt: skip
    means = _mean_losses(batch, examples, collectives, replicas_to_compare(pipe, batch))
    domains = [options.domains[slot] for slot in means.slots] if options.domains else None
    heads = partial(_sum_of_heads, batch, means.shares, collectives)
    inputs = gather_features(batch, options, means.shares, collectives) if batch.features else {}
    if options.kernel_traces is not None:
        inputs["kernel_traces"] = partial(_mean_traces, options.kernel_traces, batch.tasks, means.shares, collectives)
    if options.level == "features":
        gather = collectives.ranks.gather and bool(Ranks.reading_rows(pipe))
        rows = FeatureRows(batch, means.shares, collectives, gather)
        return RowsOfRanks(
            rows.jacobian, means.losses, means.slots, domains, rows.used, heads, inputs, rows.to_parameters
        ).homogenize(pipe, batch, options)
    eager = reads_rows(pipe, options.per, options.scaled)
    jacobian = LazyShardedJacobian(batch, means.shares, means.one_pass, collectives, eager)
    found = RowsOfRanks(jacobian, means.losses, means.slots, domains, lambda: jacobian.used, heads, inputs)
    return found.homogenize(pipe, batch, options)


def fully_sharded_step(pipe: Pipeline, batch: Batch, options: Options, collectives: Collectives) -> ComputedStep:
    """Homogenize the rows of parameters that `fully_shard` splits over the ranks.

    Its hooks compute the mean over ranks, of which every rank receives the part that it stores. These parts are the
    columns of a Jacobian whose Gramian is summed over the ranks; the direction needs no exchange.

    Raises:
        OptionError: an option is not supported with `fully_shard`.
    """
    ranks, graph = collectives.ranks, batch.derivatives.graph
    if ranks.local or ranks.over != "batch":
        raise OptionError(
            f"parameters that are sharded by fully_shard require Ranks('batch'), because its hooks average over the "
            f"ranks; got {ranks}."
        )
    if options.heads != "own" or pipe.nonfinite == "drop":
        raise OptionError(
            "parameters that are sharded by fully_shard require heads='own' and a pipeline with nonfinite='raise', "
            "because each backward pass writes the gradients of the heads; got "
            f"heads={options.heads!r}, nonfinite={pipe.nonfinite!r}."
        )
    replicas = check_sharding(graph.shared, collectives)
    losses = weigh_ranks(pipe, batch, options, collectives, "step")
    rows = batch.derivatives.rows()
    parts = {name: local_part(parameter) for name, parameter in graph.shared.items()}
    sharded = FullyShardedJacobian(PerTaskJacobian(rows, parts, 1 / graph.factor), graph.shared, replicas, collectives)
    jacobian: Jacobian = DenseJacobian(sharded.materialize()) if ranks.gather and ranks.reading_rows(pipe) else sharded
    used = torch.tensor([[any(part is not None for part in parts) for parts in rows.values()]])
    tasks = batch.tasks
    domains = [options.domains[slot] for slot in tasks.slots] if options.domains else None
    to_parameters = partial(distribute, parameters=graph.shared)
    try:
        return RowsOfRanks(
            jacobian, losses, tasks.slots, domains, lambda: used, list, to_parameters=to_parameters
        ).homogenize(pipe, batch, options)
    except NonfiniteError as error:
        error.add_note("Parameters that are not shared received their gradients before: call optimizer.zero_grad().")
        raise


def weigh_ranks(pipe: Pipeline, batch: Batch, options: Options, collectives: Collectives, call: str) -> Tensor:
    """Return the mean of each task's losses over the ranks; the rows of a fully sharded model get the same weights.

    `call`: `"step"`, or `"add"` for a batch of an accumulation, which must be the same on all ranks.

    Raises:
        OptionError: `examples` is zero on all ranks for a task, or on this rank for a loss that is not finite.
        RankError: a task is absent on some ranks, whose backward passes would then differ.
    """
    tasks = batch.tasks
    examples = _examples(collectives.ranks, tasks)
    for index, (slot, loss) in enumerate(zip(tasks.slots, tasks.losses, strict=True)):
        if examples[slot] == 0 and not torch.isfinite(loss):
            raise OptionError(
                f"the loss of task {tasks.label(index)} must be finite, although its `examples` are 0 on this rank, "
                f"because the hooks of fully_shard require its backward pass; got {loss.item()}. Pass a loss that "
                "depends on the outputs, such as 0 * output.sum()."
            )
    same = {**must_agree(pipe, batch, options, collectives.ranks, call), "present tasks": tasks.slots}
    collectives.agree(len(tasks.slots), same, last=call != "step")
    means = _mean_losses(batch, examples, collectives)
    if len(means.slots) < len(tasks.slots):
        raise OptionError("`examples` must be positive for every task on at least one rank; omit the losses of others.")
    if isinstance(batch.derivatives, FullyShardedDerivatives):
        batch.derivatives.shares = [collectives.size * share for share in means.shares.values()]
    return means.losses


@dataclass(frozen=True)
class _MeanLosses:
    """Means over ranks.

    Attributes:
        slots: the tasks that are present on at least one rank.
        losses: their mean losses.
        shares: w_ri of this rank for each of these tasks.
        one_pass: True if on every rank a weighted sum takes one backward pass.
    """

    slots: list[int]
    losses: Tensor
    shares: dict[int, float]
    one_pass: bool


def _mean_losses(
    batch: Batch, examples: list[float], collectives: Collectives, replicas: Mapping[str, Tensor] | None = None
) -> _MeanLosses:
    """Return the means; `replicas`: parameters that must have the same values on all ranks."""
    tasks = batch.tasks
    local = dict(zip(tasks.slots, (loss.item() for loss in tasks.losses), strict=True))
    values = [local.get(slot, 0.0) for slot in range(tasks.tasks)]
    compared = replicas or {}
    elements = first_elements(list(compared.values()))
    gathered = collectives.all_gather_numbers([*examples, *values, batch.derivatives.one_pass, *elements])
    sizes = [tasks.tasks, tasks.tasks, 1, len(compared)]
    counts, losses, one_pass, elements_of_all = torch.split(gathered, sizes, dim=1)
    check_replicas(list(compared), elements_of_all)
    totals = counts.sum(0)
    slots = [slot for slot, total in enumerate(totals.tolist()) if total > 0]
    if not slots:
        raise OptionError("`examples` must be positive for at least one task on one rank; got 0 everywhere.")
    shares = counts[:, slots] / totals[slots]
    means = torch.where(shares > 0, shares * losses[:, slots], 0.0).sum(0)
    own = dict(zip(slots, shares[collectives.rank].tolist(), strict=True))
    return _MeanLosses(slots, means, own, bool(one_pass.all()))


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


def _mean_traces(
    own: KernelTraces, tasks: TaskLosses, shares: Mapping[int, float], collectives: Collectives, probes: int,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """Return the mean over the ranks of the traces tr K_i / n_i, which are means over residuals, like the losses."""
    found: dict[int, float] = {}
    failure: Exception | None = None
    try:
        found = dict(zip(tasks.slots, own(probes, generator).tolist(), strict=True))
    except Exception as error:  # raised after the sum, because the other ranks wait in it
        failure = error
    parts = [share * found[slot] if share > 0 and slot in found else 0.0 for slot, share in shares.items()]
    return collectives.settle(failure, parts).sum(0)


# -- heads -------------------------------------------------------------------------------------------------------------


def head_shapes(batch: Batch) -> list[tuple[int, list[tuple[int, ...]]]]:
    """Return the shapes of the leaves of each task that has a head, which must be the same on all ranks."""
    pairs = zip(batch.tasks.slots, batch.unshared_leaves, strict=True)
    return [(slot, [tuple(leaf.shape) for leaf in leaves]) for slot, leaves in pairs if leaves]


def _sum_of_heads(batch: Batch, shares: Mapping[int, float], collectives: Collectives) -> HeadGradients:
    """Return the gradients of the heads, summed over the ranks with the shares of their tasks.

    A share of 0 excludes a gradient that is not finite, such as that of a mean over no labels.
    """
    pairs = [
        (slot, leaf, shares[slot] * gradient if gradient is not None and shares[slot] > 0 else None)
        for slot, gradients in zip(batch.tasks.slots, batch.unshared_gradients, strict=True)
        for leaf, gradient in gradients
        if slot in shares
    ]
    gradients = {str(index): gradient for index, (*_, gradient) in enumerate(pairs)}
    sums = sum_tensors(gradients, {str(index): leaf for index, (_, leaf, _) in enumerate(pairs)}, collectives)
    return [(slot, leaf, total) for (slot, leaf, _), total in zip(pairs, sums.values(), strict=True)]

"""A step of tasks whose examples are distributed over ranks: each rank has all tasks, on its part of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from gradhomog.autograd.apply import ComputedStep, Options
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.distributed.agreement import head_shapes, parameters_to_compare, values_to_compare
from gradhomog.autograd.distributed.features import FeatureRows, gather_features
from gradhomog.autograd.distributed.lazy_exchange import LazyExchangedJacobian
from gradhomog.autograd.distributed.mean_losses import examples_of_tasks, mean_losses
from gradhomog.autograd.distributed.rows import HeadGradients, RowsOfRanks
from gradhomog.autograd.inputs import TaskLosses
from gradhomog.autograd.lazy import reads_rows
from gradhomog.autograd.parameter_groups import group_names
from gradhomog.pipelines import Pipeline
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.exchange import sum_tensors
from gradhomog.ranks.ranks import Ranks
from gradhomog.step import KernelTraces


def batch_step(pipe: Pipeline, batch: Batch, options: Options, collectives: Collectives) -> ComputedStep:
    """Homogenize the rows Σ_r w_ri J_ri."""
    tasks = batch.tasks
    examples = examples_of_tasks(collectives.ranks, tasks)
    collectives.agree(tasks.tasks, {
        **values_to_compare(pipe, batch, options, collectives.ranks, "step"),
        "tasks": (tasks.tasks, options.domains), "heads": head_shapes(batch),
    })  # fmt: skip
    means = mean_losses(batch, examples, collectives, parameters_to_compare(pipe, batch))
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
    groups = group_names(list(batch.derivatives.graph.shared), options.per).values()
    jacobian = LazyExchangedJacobian(batch, means.shares, means.one_pass, groups, collectives, eager)
    found = RowsOfRanks(jacobian, means.losses, means.slots, domains, lambda: jacobian.used, heads, inputs)
    return found.homogenize(pipe, batch, options)


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

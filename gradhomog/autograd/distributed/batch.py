"""A step of tasks whose examples are distributed over ranks: each rank has all tasks, on its part of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from gradhomog.autograd.apply import ComputedStep, Options
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.distributed.agreement import head_shapes, replicas_to_compare, values_to_compare
from gradhomog.autograd.distributed.features import FeatureRows, gather_features
from gradhomog.autograd.distributed.lazy_exchange import LazyExchangedJacobian
from gradhomog.autograd.distributed.mean_losses import mean_losses
from gradhomog.autograd.distributed.rows import HeadGradients, RowsOfRanks
from gradhomog.autograd.lazy import reads_rows
from gradhomog.autograd.parameter_groups import group_names
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.exchange import sum_tensors
from gradhomog.ranks.ranks import Ranks
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import KernelTraces


def batch_step(pipe: Pipeline, batch: Batch, options: Options, collectives: Collectives) -> ComputedStep:
    """Homogenize the rows Σ_r w_ri J_ri."""
    tasks = batch.tasks
    collectives.agree(tasks.tasks, {
        **values_to_compare(pipe, batch, options, collectives.ranks, "step"),
        "tasks": (tasks.tasks, options.domains), "heads": head_shapes(batch),
    })  # fmt: skip
    means = mean_losses(batch, collectives, replicas_to_compare(pipe, batch, collectives.ranks))
    slots = list(means.totals)
    domains = [options.domains[slot] for slot in slots] if options.domains else None
    heads = partial(sum_of_heads, batch, means.totals, collectives)
    inputs = gather_features(batch, options, means.totals, collectives) if batch.features else {}
    if options.kernel_traces is not None:
        inputs["kernel_traces"] = partial(_mean_traces, options.kernel_traces, batch, means.totals, collectives)
    if options.level == "features":
        gather = collectives.ranks.gather and bool(Ranks.reading_rows(pipe))
        rows = FeatureRows(batch, means.totals, collectives, gather)
        return RowsOfRanks(
            rows.jacobian, means.losses, slots, domains, rows.used, heads, inputs, rows.to_parameters
        ).homogenize(pipe, batch, options)
    eager = reads_rows(pipe, options.per, options.scaled)
    groups = group_names(list(batch.derivatives.graph.shared), options.per).values()
    jacobian = LazyExchangedJacobian(batch, means.totals, means.one_pass, groups, collectives, eager)
    found = RowsOfRanks(jacobian, means.losses, slots, domains, lambda: jacobian.used, heads, inputs)
    return found.homogenize(pipe, batch, options)


def _mean_traces(
    own: KernelTraces, batch: Batch, totals: Mapping[int, float], collectives: Collectives, probes: int,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """Return the mean over the ranks of the traces tr K_i / n_i, which are means over residuals, like the losses."""
    parts = dict.fromkeys(totals, 0.0)
    failure: Exception | None = None
    try:
        traces, weights = own(probes, generator).tolist(), batch.derivatives.graph.loss_weights
        for slot, weight, trace in zip(batch.tasks.slots, weights, traces, strict=True):
            if weight > 0:
                parts[slot] = weight * trace / totals[slot]
    except Exception as error:  # raised after the sum, because the other ranks wait in it
        failure = error
    return collectives.settle(failure, list(parts.values())).sum(0)


def sum_of_heads(batch: Batch, totals: Mapping[int, float], collectives: Collectives) -> HeadGradients:
    """Return the gradients of the heads: sums over the ranks, divided by the numbers of examples of their tasks."""
    pairs = [
        (slot, leaf, None if gradient is None else gradient / totals[slot])
        for slot, gradients in zip(batch.tasks.slots, batch.unshared_gradients, strict=True)
        for leaf, gradient in gradients
        if slot in totals
    ]
    gradients = {str(index): gradient for index, (*_, gradient) in enumerate(pairs)}
    sums = sum_tensors(gradients, {str(index): leaf for index, (_, leaf, _) in enumerate(pairs)}, collectives)
    return [(slot, leaf, total) for (slot, leaf, _), total in zip(pairs, sums.values(), strict=True)]

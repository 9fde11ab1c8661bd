"""A step of `Ranks(local=True)`: each rank homogenizes its own rows, and directions are averaged."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradhomog.autograd.apply import ComputedStep, Options, compute_step, head_factors, infinite_step
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.distributed.agreement import (
    head_shapes,
    replicas_to_compare,
    used_by_this_rank,
    values_to_compare,
)
from gradhomog.autograd.distributed.rows import shared_gradients
from gradhomog.autograd.lazy import LazyJacobian
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.exchange import average
from gradhomog.ranks.replicas import check_replicas, digests
from gradhomog.step.pipelines import Pipeline


def local_step(
    pipe: Pipeline, batch: Batch, jacobian: LazyJacobian, options: Options, collectives: Collectives
) -> ComputedStep:
    """Homogenize the rows of this rank, and average directions and gradients of heads over the ranks."""
    domains = tuple(options.domains[slot] for slot in batch.tasks.slots) if options.domains else ()
    step = compute_step(pipe, batch, jacobian, replace(options, domains=domains))
    same = values_to_compare(pipe, batch, options, collectives.ranks, "step")
    counts = collectives.agree(len(step.result.tasks), {**same, "heads": head_shapes(batch)})
    if not all(counts):
        return infinite_step(batch)  # of a gradient scaler, on at least one rank
    graph = batch.derivatives.graph
    direction = average(step.result.direction, step.result.direction, collectives)
    compared = replicas_to_compare(pipe, batch, collectives.ranks)
    gathered = collectives.all_gather_numbers([*used_by_this_rank(jacobian), *digests(compared.values())])
    used, elements_of_all = torch.split(gathered, [len(jacobian.names), len(compared)], dim=1)
    check_replicas(compared, elements_of_all)
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

"""A step of a model that `fully_shard` (FSDP2) splits over ranks: its hooks exchange the rows, pass by pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from gradhomog.autograd.apply import ComputedStep, Options
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.distributed.agreement import head_shapes, replicas_to_compare, values_to_compare
from gradhomog.autograd.distributed.batch import sum_of_heads
from gradhomog.autograd.distributed.fully_sharded_passes import FullyShardedDerivatives
from gradhomog.autograd.distributed.mean_losses import mean_losses
from gradhomog.autograd.distributed.rows import RowsOfRanks
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.dtensor_jacobian import DTensorJacobian
from gradhomog.ranks.dtensors import count_replicas, local_part, split_whole_tensors
from gradhomog.rows import DenseJacobian, Jacobian, PerTaskJacobian
from gradhomog.step.pipelines import Pipeline


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
    replicas = count_replicas(graph.shared, collectives)
    same = {**values_to_compare(pipe, batch, options, ranks, "step"), "heads": head_shapes(batch)}
    collectives.agree(len(batch.tasks.slots), same)
    losses = weigh_ranks(batch, collectives, replicas_to_compare(pipe, batch, collectives.ranks))
    rows = batch.derivatives.rows()
    parts = {name: local_part(parameter) for name, parameter in graph.shared.items()}
    sharded = DTensorJacobian(PerTaskJacobian(rows, parts, 1 / graph.factor), graph.shared, replicas, collectives)
    jacobian: Jacobian = DenseJacobian(sharded.materialize()) if ranks.gather and ranks.reading_rows(pipe) else sharded
    used = torch.tensor([[any(part is not None for part in parts) for parts in rows.values()]])
    tasks = batch.tasks
    domains = [options.domains[slot] for slot in tasks.slots] if options.domains else None
    # The weights of the losses were multiplied by the number of ranks, as the hooks divide by it.
    heads = partial(sum_of_heads, batch, dict.fromkeys(tasks.slots, collectives.size), collectives)
    to_parameters = partial(split_whole_tensors, parameters=graph.shared)
    try:
        return RowsOfRanks(
            jacobian, losses, tasks.slots, domains, lambda: used, heads, to_parameters=to_parameters
        ).homogenize(pipe, batch, options)
    except NonfiniteError as error:
        error.add_note("Parameters that are not shared received their gradients before: call optimizer.zero_grad().")
        raise


def weigh_ranks(batch: Batch, collectives: Collectives, compared: Mapping[str, Tensor]) -> Tensor:
    """Return the mean of each task's losses over the ranks; the rows of a fully sharded model get the same weights.

    `compared`: see `mean_losses`.

    Raises:
        OptionError: `examples` is zero on all ranks for a task.
    """
    means = mean_losses(batch, collectives, compared)
    if len(means.totals) < len(batch.tasks.slots):
        raise OptionError("`examples` must be positive for every task on at least one rank; omit the losses of others.")
    if isinstance(batch.derivatives, FullyShardedDerivatives):  # whose hooks divide by the number of ranks
        graph = batch.derivatives.graph
        pairs = zip(graph.loss_weights, means.totals.values(), strict=True)
        graph.loss_weights = [collectives.size * examples / total for examples, total in pairs]
    return means.losses

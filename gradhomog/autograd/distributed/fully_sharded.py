"""A step of a model that `fully_shard` (FSDP2) splits over ranks: its hooks exchange the rows, pass by pass."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from gradhomog.autograd.apply import ComputedStep, Options
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.distributed.agreement import values_to_compare
from gradhomog.autograd.distributed.fully_sharded_passes import FullyShardedDerivatives
from gradhomog.autograd.distributed.mean_losses import examples_of_tasks, mean_losses
from gradhomog.autograd.distributed.rows import RowsOfRanks
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.jacobian import DenseJacobian, Jacobian, PerTaskJacobian
from gradhomog.pipelines import Pipeline
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.dtensor_jacobian import DTensorJacobian
from gradhomog.ranks.dtensors import count_replicas, local_part, split_whole_tensors


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
    losses = weigh_ranks(pipe, batch, options, collectives, "step")
    rows = batch.derivatives.rows()
    parts = {name: local_part(parameter) for name, parameter in graph.shared.items()}
    sharded = DTensorJacobian(PerTaskJacobian(rows, parts, 1 / graph.factor), graph.shared, replicas, collectives)
    jacobian: Jacobian = DenseJacobian(sharded.materialize()) if ranks.gather and ranks.reading_rows(pipe) else sharded
    used = torch.tensor([[any(part is not None for part in parts) for parts in rows.values()]])
    tasks = batch.tasks
    domains = [options.domains[slot] for slot in tasks.slots] if options.domains else None
    to_parameters = partial(split_whole_tensors, parameters=graph.shared)
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
    examples = examples_of_tasks(collectives.ranks, tasks)
    for index, (slot, loss) in enumerate(zip(tasks.slots, tasks.losses, strict=True)):
        if examples[slot] == 0 and not torch.isfinite(loss):
            raise OptionError(
                f"the loss of task {tasks.label(index)} must be finite, although its `examples` are 0 on this rank, "
                f"because the hooks of fully_shard require its backward pass; got {loss.item()}. Pass a loss that "
                "depends on the outputs, such as 0 * output.sum()."
            )
    same = {**values_to_compare(pipe, batch, options, collectives.ranks, call), "present tasks": tasks.slots}
    collectives.agree(len(tasks.slots), same, last=call != "step")
    means = mean_losses(batch, examples, collectives, {})  # ranks have different parts of the parameters
    if len(means.slots) < len(tasks.slots):
        raise OptionError("`examples` must be positive for every task on at least one rank; omit the losses of others.")
    if isinstance(batch.derivatives, FullyShardedDerivatives):
        batch.derivatives.shares = [collectives.size * share for share in means.shares.values()]
    return means.losses

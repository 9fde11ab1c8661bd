"""Rows of a model that `fully_shard` (FSDP2) splits over ranks: its hooks exchange them, pass by pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gradhomog.autograd.backward_pass import backward_pass
from gradhomog.autograd.derivatives import Derivatives
from gradhomog.autograd.loss_graph import Gradients
from gradhomog.autograd.row_source import LeafGradients
from gradhomog.autograd.rows_over_ranks import ExchangedRows, agree, mean_losses, replicas_to_compare, sum_heads
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.dtensors import count_replicas, local_part, split_whole_tensors
from gradhomog.ranks.split_rows import sharded_rows
from gradhomog.rows import DenseRows, Direction, Jacobian, PerTaskRows
from gradhomog.step.step import Step


class FullyShardedRows(ExchangedRows):
    """The rows of parameters that `fully_shard` splits over the ranks.

    Its hooks compute the mean over ranks, of which every rank receives the part that it stores. These parts are the
    columns of a Jacobian whose Gramian is summed over the ranks; the direction needs no exchange.

    Raises:
        OptionError: an option is not supported with `fully_shard`.
    """

    written_before = "Parameters that are not shared received their gradients before: call optimizer.zero_grad()."

    def make_step(self) -> Step:
        step, graph, communicator, options = self._step, self._graph, self._communicator, self._options
        ranks = communicator.ranks
        if ranks.local or ranks.over != "batch":
            raise OptionError(
                f"parameters that are sharded by fully_shard require Ranks('batch'), because its hooks average over "
                f"the ranks; got {ranks}."
            )
        if options.heads != "own" or options.pipe.nonfinite == "drop":
            raise OptionError(
                "parameters that are sharded by fully_shard require heads='own' and a pipeline with "
                "nonfinite='raise', because each backward pass writes the gradients of the heads; got "
                f"heads={options.heads!r}, nonfinite={options.pipe.nonfinite!r}."
            )
        replicas = count_replicas(graph.shared, communicator)
        agree(step, len(graph.tasks.slots))
        losses = weigh_ranks(self._derivatives, communicator, replicas_to_compare(step))
        rows = self._derivatives.rows()
        self._used = torch.tensor([[any(part is not None for part in parts) for parts in rows.values()]])
        parts = {name: local_part(parameter) for name, parameter in graph.shared.items()}
        sharded = sharded_rows(PerTaskRows(rows, parts, 1 / graph.factor), graph.shared, replicas, communicator)
        gathers = ranks.gather and options.pipe.requirements.readers["jacobian"]
        jacobian = Jacobian(DenseRows(sharded.materialize()) if gathers else sharded)
        return Step(step.keys, jacobian, losses)

    def to_parameters(self, direction: Direction) -> tuple[Direction, Collection[str]]:
        return split_whole_tensors(direction, self._graph.shared), self.unused(self._used)

    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        # The weights of the losses were multiplied by the number of ranks, as the hooks divide by it.
        scales = {slot: factor / self._communicator.size for slot, factor in factors.items()}
        return sum_heads(self._derivatives, scales, self._communicator)


def weigh_ranks(derivatives: Derivatives, communicator: GroupCommunicator, compared: Mapping[str, Tensor]) -> Tensor:
    """Return the mean of each task's losses over the ranks; the rows of a fully sharded model get the same weights.

    Its hooks divide by the number of ranks. `compared`: see `gather_numbers`.

    Raises:
        OptionError: `examples` is zero on all ranks for a task.
    """
    graph = derivatives.graph
    losses, totals, _ = mean_losses(graph, communicator, False, compared)
    if len(totals) < len(graph.tasks.slots):
        raise OptionError("`examples` must be positive for every task on at least one rank; omit the losses of others.")
    pairs = zip(graph.loss_weights, totals.values(), strict=True)
    weights = [communicator.size * examples / total for examples, total in pairs]
    derivatives.graph = replace(graph, loss_weights=weights)
    return losses


class FullyShardedDerivatives(Derivatives):
    """Calls `backward()` for each loss, because hooks of `fully_shard`, which average over ranks, run only there.

    So `.grad` of the shared parameters, and of heads that are not sharded, is the gradient of one task until the next
    pass; it is restored at the end. The gradients of other sharded parameters, such as those of heads, are added to
    their `.grad`, as by `sum(losses).backward()`; a pass of a weighted sum would write weighted gradients there.
    """

    def iterate(self) -> Iterator[Gradients]:
        graph, shared = self.graph, list(self.graph.shared.values())
        leaves = {id(leaf): leaf for heads in (shared, *graph.unshared_leaves) for leaf in heads}.values()
        before = [leaf.grad for leaf in leaves]
        self.unshared_gradients = []
        try:
            for task, loss in enumerate(graph.tasks.losses):
                for leaf in leaves:
                    leaf.grad = None
                retain = graph.retain_graph or task < len(graph.tasks.losses) - 1
                backward_pass(
                    [loss], None, [graph.initial_gradient(task)], retain_graph=retain, compiled=graph.compiled
                )
                self.unshared_gradients.append([leaf.grad for leaf in graph.unshared_leaves[task]])
                yield [None if parameter.grad is None else local_part(parameter.grad) for parameter in shared]
        finally:
            for leaf, gradient in zip(leaves, before, strict=True):
                leaf.grad = gradient

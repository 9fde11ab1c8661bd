"""Gradients of losses w.r.t. parameters that `fully_shard` (FSDP2) splits over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradhomog.autograd.backward_pass import explain_errors
from gradhomog.autograd.derivatives import Derivatives, TaskGradients
from gradhomog.autograd.loss_graph import Gradients
from gradhomog.errors import OptionError
from gradhomog.ranks.dtensors import local_part


class FullyShardedDerivatives(Derivatives):
    """Calls `backward()` for each loss, because hooks of `fully_shard`, which average over ranks, run only there.

    So `.grad` of the shared parameters, and of heads that are not sharded, is the gradient of one task until the next
    pass; it is restored at the end. The gradients of other sharded parameters, such as those of heads, are added to
    their `.grad`, as by `sum(losses).backward()`.
    """

    def iterate(self) -> Iterator[Gradients]:
        graph, shared = self.graph, list(self.graph.shared.values())
        leaves = {id(leaf): leaf for heads in (shared, *graph.unshared_leaves) for leaf in heads}.values()
        before = [leaf.grad for leaf in leaves]
        self.unshared_gradients = []
        try:
            for task, loss in enumerate(graph.losses):
                for leaf in leaves:
                    leaf.grad = None
                retain = graph.retain_graph or task < len(graph.losses) - 1
                with explain_errors(graph.compiled if retain else ()):
                    torch.autograd.backward(
                        [loss], [torch.full_like(loss, graph.weight(task) * graph.factor)], retain_graph=retain
                    )
                self.unshared_gradients.append([leaf.grad for leaf in graph.unshared_leaves[task]])
                yield [None if parameter.grad is None else local_part(parameter.grad) for parameter in shared]
        finally:
            for leaf, gradient in zip(leaves, before, strict=True):
                leaf.grad = gradient

    def some_rows(self, names: Sequence[str]) -> TaskGradients:
        raise OptionError("`chunks` must be 1 for parameters that are sharded by fully_shard.")

    @property
    def one_pass(self) -> bool:
        """False, because a pass of a weighted sum would write weighted gradients of the heads."""
        return False

    def weighted_sum(self, weights: Tensor) -> None:
        return None

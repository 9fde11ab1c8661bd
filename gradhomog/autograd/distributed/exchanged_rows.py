"""What all exchanges of rows have in common: parameters used on any rank, and sums of the gradients of heads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping

from torch import Tensor

from gradhomog.autograd.lazy import require_used
from gradhomog.autograd.row_source import Gradients, RowSource
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.exchange import sum_tensors


class ExchangedRows(RowSource[GroupCommunicator]):
    """A source that sends rows or parts of them; after it, every rank takes the same step."""

    exchanged = "rows"

    @abstractmethod
    def used(self) -> Tensor:
        """Return, for each rank and parameter, 1 if a loss of that rank depends on it, `[ranks, parameters]`."""

    def unused(self) -> Collection[str]:
        flags = self.used().any(0).tolist()
        unused = {name for name, used in zip(self._graph.shared, flags, strict=True) if not used}
        require_used(self._graph.shared, unused)
        return unused

    def sum_heads(self, factors: Mapping[int, float], totals: Mapping[int, float]) -> Gradients:
        """Return the gradients of the heads: sums over the ranks, divided by the `totals` of their tasks, by slot."""
        graph = self._graph
        per_task = zip(graph.tasks.slots, graph.unshared_leaves, self._derivatives.unshared_gradients, strict=True)
        entries = [
            (slot, leaf, None if gradient is None else gradient / totals[slot])
            for slot, leaves, gradients in per_task
            for leaf, gradient in zip(leaves, gradients, strict=True)
            if slot in totals
        ]
        gradients = {str(index): gradient for index, (*_, gradient) in enumerate(entries)}
        like = {str(index): leaf for index, (_, leaf, _) in enumerate(entries)}
        sums = sum_tensors(gradients, like, self._communicator)
        return [
            (leaf, factors[slot] * total)
            for (slot, leaf, _), total in zip(entries, sums.values(), strict=True)
            if slot in factors
        ]

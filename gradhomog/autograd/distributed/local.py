"""`Ranks(local=True)`: each rank homogenizes its own rows, and directions are averaged."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from gradhomog.autograd.distributed.agreement import (
    flags_of_used,
    head_shapes,
    replicas_to_compare,
    values_to_compare,
)
from gradhomog.autograd.row_source import Gradients, OwnRows
from gradhomog.errors import NonfiniteError
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.exchange import average
from gradhomog.ranks.replicas import check_replicas, digests
from gradhomog.rows import Direction


class LocalRows(OwnRows[GroupCommunicator]):
    """The rows of this rank; directions and gradients of heads are averaged over the ranks."""

    exchanged = "directions"
    _agreed = False

    def to_parameters(self, direction: Direction) -> Direction:
        communicator, graph = self._communicator, self._graph
        if not all(self._agree(len(graph.tasks.slots))):
            raise NonfiniteError(
                "the rows of another rank overflow."
            )  # the gradient scalers of all ranks skip the step
        total = average(direction, direction, communicator)
        compared = replicas_to_compare(self._step, graph, communicator.ranks)
        own = [*flags_of_used(graph.shared, self._rows.unused), *digests(compared.values())]
        used, elements_of_all = torch.split(
            communicator.all_gather_numbers(own), [len(graph.shared), len(compared)], dim=1
        )
        check_replicas(compared, elements_of_all)
        flags = used.any(0).tolist()
        self._unused_everywhere = {name for name, used in zip(graph.shared, flags, strict=True) if not used}
        return total

    def unused(self) -> Collection[str]:
        return self._unused_everywhere

    def head_gradients(self, factors: Mapping[int, float]) -> Gradients:
        # All leaves, because ranks may have dropped different tasks.
        graph = self._graph
        leaves = {
            str(index): leaf for index, leaf in enumerate(leaf for part in graph.unshared_leaves for leaf in part)
        }
        own = [
            None if gradient is None or slot not in factors else factors[slot] * gradient
            for slot, gradients in zip(graph.tasks.slots, self._derivatives.unshared_gradients, strict=True)
            for gradient in gradients
        ]
        means = average(dict(zip(leaves, own, strict=True)), leaves, self._communicator)
        return list(zip(leaves.values(), means.values(), strict=True))

    def overflow(self) -> None:
        if not self._agreed:
            self._agree(0)

    def _agree(self, count: int) -> list[int]:
        """Exchange the number of tasks, 0 after an overflow."""
        self._agreed = True
        same = values_to_compare(self._step, self._graph, self._communicator.ranks)
        return self._communicator.agree(count, {**same, "heads": head_shapes(self._graph)})

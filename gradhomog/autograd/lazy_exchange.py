"""The rows of a batch over ranks, exchanged on first use; a weighted mean alone takes one pass and one all-reduce."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives
from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.exchange import PartialRow, sum_batches, sum_tensors
from gradhomog.ranks.split_rows import SplitRows
from gradhomog.rows import Direction, LazyRows


@final
class ExchangedLossRows(LazyRows):
    """The rows Σ_r J_ri / Σ_r e_ri of a batch over ranks, with losses that were multiplied by their e_ri.

    Every method must be called on all ranks in the same order.

    Args:
        derivatives: the derivatives of the losses of this rank.
        totals: for each task that is present on at least one rank, by slot, the number of examples on all ranks.
        one_pass: True if on every rank a weighted sum takes one backward pass.
        groups: the names of the parameters that are homogenized together.
    """

    requires_grad = False

    def __init__(
        self, derivatives: Derivatives, totals: Mapping[int, float], one_pass: bool, groups: Iterable[Sequence[str]],
        communicator: GroupCommunicator,
    ) -> None:  # fmt: skip
        self._derivatives, self._totals, self._one_pass = derivatives, totals, one_pass
        self._groups, self._communicator = groups, communicator
        self.like, self.tasks = derivatives.graph.shared, len(totals)
        self._used: Tensor | None = None

    @property
    def used(self) -> Tensor:
        """For each rank and parameter, 1 if a loss of that rank depends on it, `[ranks, parameters]`."""
        if self._used is None:
            self.stored()
        assert self._used is not None
        return self._used

    def compute(self) -> SplitRows:
        """Compute the rows by one backward pass per task, and send each during the next pass."""
        used: set[str] = set()
        failure: list[Exception] = []
        split = ColumnSplit(self.like, self._communicator.size, self._communicator.rank, self._groups)
        rows = sum_batches(self._partial_rows(used, failure), split, self._communicator)
        self._used = self._communicator.settle(failure[0] if failure else None, [name in used for name in self.like])
        return rows

    def sum_in_one_pass(self, weights: Tensor, divisor: float) -> Direction | None:
        if not self._one_pass:
            return None
        graph, slots = self._derivatives.graph, self._derivatives.graph.tasks.slots
        # Relative to the largest, because `weighted_sum` regards small weights as a loss of digits.
        largest = max(self._totals.values())
        by_slot = dict(zip(self._totals, weights.tolist(), strict=True))
        relative = [
            by_slot[slot] * largest / self._totals[slot] if slot in by_slot and graph.counts(task) else 0.0
            for task, slot in enumerate(slots)
        ]
        found: dict[str, Tensor | None] = {}
        failure: Exception | None = None
        try:
            total = self._derivatives.weighted_sum(torch.tensor(relative, dtype=torch.float64))
            assert total is not None  # by `one_pass`
            if any(relative):  # otherwise zeros, also for parameters that no loss depends on
                found = dict(zip(self.like, total, strict=True))
        except Exception as error:  # raised after the sum, because the other ranks wait in it
            failure = error
        parts = {name: found.get(name) for name in self.like}
        sums = sum_tensors(parts, self.like, self._communicator)
        self._used = self._communicator.settle(failure, [part is not None for part in parts.values()])
        self.freed = not graph.retain_graph
        scale = 1 / (divisor * graph.factor * largest)
        return {name: part.mul_(scale) for name, part in sums.items()}

    def _partial_rows(self, used: set[str], failure: list[Exception]) -> Iterator[PartialRow | None]:
        """Yield this rank's part of each row when it is required; None if it has none, also after an error.

        `used`, `failure`: receive the names of the parameters that a loss depends on, and the error.
        """
        tasks, derivatives = self._derivatives.graph.tasks, self._derivatives
        computed = derivatives.iterate()
        for slot in range(tasks.tasks):
            row: dict[str, Tensor | None] = {}
            if slot in tasks.slots and not failure:
                try:
                    row = dict(zip(self.like, next(computed), strict=True))
                except Exception as error:  # raised after the exchange, because the other ranks wait in it
                    failure.append(error)
            used.update(name for name, gradient in row.items() if gradient is not None)
            if slot in self._totals:
                yield (row, 1 / (self._totals[slot] * derivatives.graph.factor)) if row else None

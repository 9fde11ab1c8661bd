"""The rows of a batch over ranks, exchanged on first use; a weighted mean alone takes one pass and one all-reduce."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives
from gradhomog.autograd.lazy import error_of_one_pass
from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.exchange import PartialRow, sum_batches, sum_tensors
from gradhomog.ranks.exchanged import ExchangedJacobian
from gradhomog.rows import Direction, Jacobian


@final
class LazyExchangedJacobian(Jacobian):
    """The rows Σ_r J_ri / Σ_r e_ri of a batch over ranks, with losses that were multiplied by their e_ri.

    Every method must be called on all ranks in the same order.

    Args:
        derivatives: the derivatives of the losses of this rank.
        totals: for each task that is present on at least one rank, by slot, the number of examples on all ranks.
        one_pass: True if on every rank a weighted sum takes one backward pass.
        groups: the names of the parameters that are homogenized together.
        eager: exchange the rows in the constructor.
    """

    def __init__(
        self, derivatives: Derivatives, totals: Mapping[int, float], one_pass: bool, groups: Iterable[Sequence[str]],
        communicator: GroupCommunicator, eager: bool = False,
    ) -> None:  # fmt: skip
        self._derivatives, self._totals, self._one_pass, self._communicator = (
            derivatives,
            totals,
            one_pass,
            communicator,
        )
        self._shared, self._groups = derivatives.graph.shared, groups
        self._used: Tensor | None = None
        self.names, self.tasks, self.requires_grad = tuple(self._shared), len(totals), False
        self.device = next(iter(self._shared.values())).device
        self.dtype = min((value.dtype for value in self._shared.values()), key=lambda dtype: dtype.itemsize)
        if eager:
            _ = self.rows

    @property
    def used(self) -> Tensor:
        """For each rank and parameter, 1 if a loss of that rank depends on it, `[ranks, parameters]`."""
        if self._used is None:
            _ = self.rows
        assert self._used is not None
        return self._used

    @functools.cached_property
    def rows(self) -> ExchangedJacobian:
        """The rows: one backward pass per task, and one reduce-scatter, during the next pass."""
        if self._used is not None and not self._derivatives.graph.retain_graph:
            raise error_of_one_pass()  # the pass of a weighted mean, which is not finite, has freed the graph
        used: set[str] = set()
        failure: list[Exception] = []
        split = ColumnSplit(self._shared, self._communicator.size, self._communicator.rank, self._groups)
        rows = sum_batches(self._partial_rows(used, failure), split, self._communicator)
        self._used = self._communicator.settle(failure[0] if failure else None, [name in used for name in self.names])
        return rows

    def weighted_mean(self, weights: Tensor) -> Direction:
        if "rows" in self.__dict__ or not self._one_pass:
            return self.rows.weighted_mean(weights)
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
                found = dict(zip(self._shared, total, strict=True))
        except Exception as error:  # raised after the sum, because the other ranks wait in it
            failure = error
        parts = {name: found.get(name) for name in self._shared}
        sums = sum_tensors(parts, self._shared, self._communicator)
        self._used = self._communicator.settle(failure, [part is not None for part in parts.values()])
        scale = 1 / (self.tasks * graph.factor * largest)
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
                    row = dict(zip(self._shared, next(computed), strict=True))
                except Exception as error:  # raised after the exchange, because the other ranks wait in it
                    failure.append(error)
            used.update(name for name, gradient in row.items() if gradient is not None)
            if slot in self._totals:
                yield (row, 1 / (self._totals[slot] * derivatives.graph.factor)) if row else None

    # -- everything else requires the rows -----------------------------------------------------------------------------

    def row(self, task: int) -> Direction:
        return self.rows.row(task)

    def materialize(self) -> dict[str, Tensor]:
        return self.rows.materialize()

    def row_like(self) -> Mapping[str, Tensor]:
        return self._shared

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return self.rows.select(tasks)

    def select_parameters(self, names: Sequence[str]) -> Jacobian:
        return self.rows.select_parameters(names)

    def detach(self) -> Jacobian:
        return self

    def finite_tasks(self) -> list[bool]:
        return self.rows.finite_tasks()

    def compute_gramians(self) -> Tensor:
        return self.rows.compute_gramians()

    def compute_squared_norms(self) -> Tensor:
        return self.rows.compute_squared_norms()

    def compute_total_gramian(self) -> Tensor:
        return self.rows.total_gramian

    def compute_total_squared_norms(self) -> Tensor:
        return self.rows.total_squared_norms

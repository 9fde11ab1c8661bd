"""The abstract Jacobian whose columns differ between ranks without an exchange: only sums over the ranks are sent."""

from __future__ import annotations

from torch import Tensor

from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.rows import Jacobian


class UnexchangedJacobian(Jacobian):
    """N rows, of which each rank keeps the columns that it computed; statistics are sums over the ranks.

    Every method must be called on all ranks in the same order, because most exchange something: total norms and
    Gramians N or N² numbers, and as many for each parameter if they are not summed. Subclasses decide how rows and
    directions are returned.

    Args:
        columns: the columns of this rank.
        communicator: the ranks over which statistics are summed.
        replicas: the number of ranks that keep the same columns.
    """

    def __init__(self, columns: Jacobian, communicator: GroupCommunicator, replicas: int = 1) -> None:
        self._columns, self._communicator, self._replicas = columns, communicator, replicas
        self.names, self.tasks, self.device = columns.names, columns.tasks, columns.device
        self.dtype, self.requires_grad = columns.dtype, False

    def detach(self) -> Jacobian:
        return self

    def finite_tasks(self) -> list[bool]:
        nonfinite = [float(not finite) for finite in self._columns.finite_tasks()]
        return [count == 0 for count in self._communicator.all_gather_numbers(nonfinite).sum(0).tolist()]

    def compute_gramians(self) -> Tensor:
        return self._sum(self._columns.compute_gramians())

    def compute_squared_norms(self) -> Tensor:
        return self._sum(self._columns.compute_squared_norms())

    def compute_total_gramian(self) -> Tensor:
        return self._sum(self._columns.compute_total_gramian())

    def compute_total_squared_norms(self) -> Tensor:
        return self._sum(self._columns.compute_total_squared_norms())

    def finite_on_all_ranks(self, finite: bool) -> bool:
        """True if `finite` is true on all ranks; each checks only its part of the direction."""
        return bool(self._communicator.all_gather_numbers([float(finite)]).all())

    def _sum(self, statistic: Tensor) -> Tensor:
        return self._communicator.sum_on_cpu(statistic / self._replicas)

"""The rows of DTensor parameters: the hooks of `fully_shard` (FSDP2) give each rank its part of every row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.dtensors import local_part
from gradhomog.ranks.unexchanged import UnexchangedJacobian
from gradhomog.rows import Direction, Jacobian, all_finite

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@final
class DTensorJacobian(UnexchangedJacobian):
    """N rows of DTensor parameters; a direction is returned as DTensors, of which each rank keeps its part.

    `materialize` and `row` send all or one of the rows to every rank.

    Args:
        columns: the parts of this rank, by parameter name.
        parameters: the DTensors.
        replicas: the number of ranks that store the same elements.
    """

    def __init__(
        self, columns: Jacobian, parameters: Mapping[str, Tensor], replicas: int, communicator: GroupCommunicator
    ) -> None:
        super().__init__(columns, communicator, replicas)
        self._parameters = parameters

    def weighted_mean(self, weights: Tensor) -> Direction:
        return {**self._from_parts(self._columns.weighted_mean(weights.detach()))}

    def row(self, task: int) -> Direction:
        return {name: part.full_tensor() for name, part in self._from_parts(self._columns.row(task)).items()}

    def materialize(self) -> dict[str, Tensor]:
        rows = [self.row(task) for task in range(self.tasks)]
        return {name: torch.stack([row[name] for row in rows]) for name in self.names}

    def row_like(self) -> Mapping[str, Tensor]:
        scalars = {name: local_part(one).new_empty((), requires_grad=False) for name, one in self._parameters.items()}
        return {name: one.expand(self._parameters[name].shape) for name, one in scalars.items()}  # without memory

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return DTensorJacobian(self._columns.select(tasks), self._parameters, self._replicas, self._communicator)

    def select_parameters(self, names: Sequence[str]) -> Jacobian:
        parameters = {name: self._parameters[name] for name in names}
        return DTensorJacobian(self._columns.select_parameters(names), parameters, self._replicas, self._communicator)

    def all_finite(self, tensors: Iterable[Tensor]) -> bool:
        return self.finite_on_all_ranks(all_finite(local_part(tensor) for tensor in tensors))

    def _from_parts(self, parts: Mapping[str, Tensor]) -> dict[str, DTensor]:
        """Return DTensors with the placements of the parameters, from the parts of this rank; nothing is sent."""
        from torch.distributed.tensor import DTensor

        found = {}
        for name, part in parts.items():
            like: Any = self._parameters[name]
            found[name] = DTensor.from_local(
                part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
            )
        return found

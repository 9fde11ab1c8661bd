"""Rows of parameters that `fully_shard` (FSDP2) splits over the ranks: each rank stores its part of every row."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.jacobian import Direction, Jacobian
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.local_columns import LocalColumns
from gradhomog.ranks.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


LIST_BEFORE = (
    "After the forward pass a module that fully_shard was applied to can contain gathered copies of its parameters. So "
    "list them once before: shared = dict(model.encoder.named_parameters()), and pass parameters=shared."
)


def is_sharded(tensor: Tensor) -> bool:
    """True for a `DTensor`, which the parameters of a fully sharded module are."""
    # Not imported here, because that takes a second; a process that has DTensors has imported it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """Return the elements of a DTensor that this rank stores; other tensors unchanged."""
    part: Any = tensor
    found: Tensor = part.to_local() if is_sharded(tensor) else tensor
    return found


def check_not_gathered(parameters: Iterable[Tensor]) -> None:
    """Raise if a parameter is the copy that `fully_shard` gathers for a step, which it frees in the backward pass.

    Raises:
        OptionError.
    """
    initialized = dist.is_available() and dist.is_initialized()
    if initialized and any(
        parameter.numel() and parameter.layout == torch.strided and not parameter.untyped_storage().nbytes()
        for parameter in parameters
    ):
        raise OptionError(
            f"`parameters` must be the DTensors of the sharded model; they are gathered copies. {LIST_BEFORE} Nothing "
            "was written."
        )


def collectives_if_sharded(
    collectives: Collectives | None, parameters: Mapping[str, Tensor], group: Ranks | dist.ProcessGroup | None
) -> Collectives | None:
    """Return collectives also for one rank if the parameters are sharded, because their gradients are DTensors then."""
    if collectives is None and any(map(is_sharded, parameters.values())):
        return Collectives(group if isinstance(group, Ranks) else Ranks("batch", group))
    return collectives


def check_sharding(parameters: Mapping[str, Tensor], collectives: Collectives) -> int:
    """Return the number of ranks that store the same elements: 1, or with hybrid sharding the number of replicas.

    Raises:
        OptionError: a parameter is not a DTensor, is not sharded over the ranks of the process group, or is sharded by
            several dimensions of its mesh (tensor parallelism).
    """
    replicas: set[int] = set()
    members = dist.get_process_group_ranks(collectives.group or dist.group.WORLD)
    for name, parameter in parameters.items():
        if not is_sharded(parameter):
            raise OptionError(
                f"either all or none of `parameters` must be DTensors; {name!r} is not. Apply fully_shard to the whole "
                f"model too, which shards the parameters that no inner module shards. {LIST_BEFORE}"
            )
        tensor: Any = parameter
        mesh, places = tensor.device_mesh, tensor.placements
        sizes = [size for size, place in zip(mesh.shape, places, strict=True) if place.is_shard()]
        known = all(place.is_shard() or place.is_replicate() for place in places)
        if sorted(mesh.mesh.flatten().tolist()) != sorted(members) or len(sizes) != 1 or not known:
            raise OptionError(
                f"parameters must be sharded by fully_shard over the {collectives.size} ranks of `group`; {name!r} has "
                f"a mesh of shape {tuple(mesh.shape)} and the placements {tuple(places)}. Tensor parallelism is not "
                "supported."
            )
        replicas.add(collectives.size // sizes[0])
    if len(replicas) > 1:
        raise OptionError("all parameters must be sharded over the same number of ranks; these are not.")
    return replicas.pop()


@final
class FullyShardedJacobian(LocalColumns):
    """N rows of sharded parameters: each rank keeps its part of every row, and of the direction, as DTensors.

    `materialize` and `row` send all or one of the rows to every rank.

    Args:
        rows: the parts of this rank.
        parameters: the DTensors.
        replicas: the number of ranks that store the same elements.
    """

    def __init__(
        self, rows: Jacobian, parameters: Mapping[str, Tensor], replicas: int, collectives: Collectives
    ) -> None:
        super().__init__(rows, collectives, replicas)
        self._parameters = parameters

    def weighted_mean(self, weights: Tensor) -> Direction:
        return {**self._distribute(super().weighted_mean(weights))}

    def row(self, task: int) -> Direction:
        return {name: part.full_tensor() for name, part in self._distribute(self._rows.row(task)).items()}

    def materialize(self) -> dict[str, Tensor]:
        rows = [self.row(task) for task in range(self.tasks)]
        return {name: torch.stack([row[name] for row in rows]) for name in self.names}

    def row_like(self) -> Mapping[str, Tensor]:
        scalars = {name: local_part(one).new_empty((), requires_grad=False) for name, one in self._parameters.items()}
        return {name: one.expand(self._parameters[name].shape) for name, one in scalars.items()}  # without memory

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return FullyShardedJacobian(self._rows.select(tasks), self._parameters, self._replicas, self._collectives)

    def all_finite(self, tensors: Iterable[Tensor]) -> bool:
        return super().all_finite([local_part(tensor) for tensor in tensors])

    def _distribute(self, parts: Mapping[str, Tensor]) -> dict[str, DTensor]:
        from torch.distributed.tensor import DTensor

        found = {}
        for name, part in parts.items():
            like: Any = self._parameters[name]
            found[name] = DTensor.from_local(
                part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
            )
        return found


def distribute(direction: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Direction:
    """Return a direction as DTensors; tensors that every rank has as a whole are split like their parameters."""
    from torch.distributed.tensor import distribute_tensor

    found = dict(direction)
    for name, value in direction.items():
        if not is_sharded(value):
            like: Any = parameters[name]
            found[name] = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    return found

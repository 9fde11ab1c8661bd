"""Parameters that `fully_shard` (FSDP2) splits over the ranks are DTensors: recognize, validate and convert them."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.rows import Direction

LIST_PARAMETERS_BEFORE_FORWARD = (
    "After the forward pass a module that fully_shard was applied to can contain gathered copies of its parameters. So "
    "list them once before: shared = dict(model.encoder.named_parameters()), and pass parameters=shared."
)


def any_dtensor(tensors: Iterable[Tensor]) -> bool:
    """True if there is a `DTensor`: a parameter of a fully sharded module is, but also one of tensor parallelism."""
    # Not imported here, because that takes a second; a process that has DTensors has imported it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(tensor, module.DTensor) for tensor in tensors)


def local_part(tensor: Tensor) -> Tensor:
    """Return the elements of a DTensor that this rank stores; other tensors unchanged."""
    part: Any = tensor
    found: Tensor = part.to_local() if any_dtensor([tensor]) else tensor
    return found


def as_dtensor(part: Tensor, like: Tensor) -> Tensor:
    """Return the DTensor with the placements of `like` of which this rank stores `part`; nothing is sent."""
    one: Any = like
    found: Tensor = type(one).from_local(
        part, one.device_mesh, one.placements, run_check=False, shape=one.shape, stride=one.stride()
    )
    return found


def check_not_gathered(parameters: Iterable[Tensor]) -> None:
    """Raise if a parameter is the copy that `fully_shard` gathers for a step, which it frees in the backward pass.

    Raises:
        OptionError.
    """
    for parameter in parameters:
        # PyTorch 2.13 has no public test for a gathered copy. `fully_shard` sets the size of its storage to 0 after the
        # backward pass, and to the full size again in the next forward pass. Reading the storage of a tensor with
        # another layout, such as a sparse one, raises an error.
        if parameter.numel() and parameter.layout == torch.strided and not parameter.untyped_storage().nbytes():
            raise OptionError(
                "`parameters` must be the DTensors of the sharded model; they are gathered copies. "
                f"{LIST_PARAMETERS_BEFORE_FORWARD} Nothing was written."
            )


def leaves_not_sharded(leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters among the leaves of a graph that `fully_shard` does not manage, such as those of heads.

    Raises:
        OptionError: `fully_shard` does not average the gradient of a leaf, because its synchronization is disabled.
    """
    # PyTorch 2.13 has no public function that returns the gathered copies of parameters, which are the leaves.
    from torch.distributed._composable_state import _module_state_mapping

    averaged: dict[int, bool] = {}
    for state in [reference() for reference in _module_state_mapping.values()]:
        for group in getattr(state, "_fsdp_param_groups", ()):
            for one in group.fsdp_params:
                averaged[id(getattr(one, "_unsharded_param", None))] = group.reduce_grads and group.all_reduce_grads
    for leaf in leaves:
        if not averaged.get(id(leaf), True):
            raise OptionError(
                "fully_shard must average the gradients of all parameters that the losses depend on; one of shape "
                f"{tuple(leaf.shape)} is excluded. Call set_requires_gradient_sync(True) on the whole model before the "
                "forward pass."
            )
    return [leaf for leaf in leaves if id(leaf) not in averaged and isinstance(leaf, nn.Parameter)]


def count_replicas(parameters: Mapping[str, Tensor], communicator: GroupCommunicator) -> int:
    """Return the number of ranks that store the same elements: 1, or with hybrid sharding the number of replicas.

    Validate that `fully_shard` splits the parameters over the ranks of the process group.

    Raises:
        OptionError: a parameter is not a DTensor, is not sharded over the ranks of the process group, or is sharded by
            several dimensions of its mesh (tensor parallelism).
    """
    replicas: set[int] = set()
    members = dist.get_process_group_ranks(communicator.group or dist.group.WORLD)
    for name, parameter in parameters.items():
        if not any_dtensor([parameter]):
            raise OptionError(
                f"either all or none of `parameters` must be DTensors; {name!r} is not. Apply fully_shard to the whole "
                f"model too, which shards the parameters that no inner module shards. {LIST_PARAMETERS_BEFORE_FORWARD}"
            )
        tensor: Any = parameter
        mesh, places = tensor.device_mesh, tensor.placements
        sizes = [size for size, place in zip(mesh.shape, places, strict=True) if place.is_shard()]
        known = all(place.is_shard() or place.is_replicate() for place in places)
        if sorted(mesh.mesh.flatten().tolist()) != sorted(members) or len(sizes) != 1 or not known:
            raise OptionError(
                f"parameters must be sharded by fully_shard over the {communicator.size} ranks of `group`; {name!r} "
                f"has a mesh of shape {tuple(mesh.shape)} and the placements {tuple(places)}. Tensor parallelism is "
                "not supported."
            )
        replicas.add(communicator.size // sizes[0])
    if len(replicas) > 1:
        raise OptionError("all parameters must be sharded over the same number of ranks; these are not.")
    return replicas.pop()


def split_whole_tensors(direction: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Direction:
    """Return a direction as DTensors: a tensor that every rank has as a whole is split like its parameter."""
    from torch.distributed.tensor import distribute_tensor

    found = dict(direction)
    for name, value in direction.items():
        if not any_dtensor([value]):
            like: Any = parameters[name]
            found[name] = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    return found

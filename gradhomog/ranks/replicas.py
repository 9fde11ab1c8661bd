"""Check that ranks hold replicas of the same parameters and states, by one number for each tensor."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.errors import RankError
from gradhomog.ranks.communicator import GroupCommunicator, Ranks, is_first_step
from gradhomog.ranks.dtensors import any_dtensor
from gradhomog.step.pipelines import Pipeline

# Replicas on different processors may differ by the rounding of the optimizer; initial values of different seeds,
# different heads in the same place, or replicas that take other steps, differ by more.
RELATIVE, ABSOLUTE = 1e-2, 1e-4
PLACES = 16  # 128 bytes


def compares_in_full(pipe: Pipeline, ranks: Ranks) -> bool:
    """True in the first step since the pipeline was created or loaded, and in every `ranks.compare_every`-th step."""
    steps = max(one.steps for one in (pipe, *pipe.groups.values()))
    return is_first_step(pipe) or (ranks.compare_every is not None and steps % ranks.compare_every == 0)


def tensors_to_compare(pipe: Pipeline, ranks: Ranks, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters, without those that are sharded, and the state of the pipeline, by a description."""
    found = {f"parameter {name!r}": one for name, one in parameters.items() if one.is_leaf and not any_dtensor([one])}
    return found if ranks.local else found | _states(pipe)


def gather_numbers(
    communicator: GroupCommunicator, compared: Mapping[str, Tensor], *numbers: Sequence[float]
) -> list[Tensor]:
    """Return the numbers of all ranks, float64 `[ranks, numbers]` for each sequence, by one message.

    Args:
        compared: tensors that must have the same values on all ranks, by a description.

    Raises:
        RankError: a tensor of one rank differs from that of rank 0.
    """
    own = [*numbers, digests(compared.values())]
    gathered = communicator.all_gather_numbers([number for part in own for number in part])
    *parts, of_tensors = torch.split(gathered, [len(part) for part in own], dim=1)
    check_replicas(compared, of_tensors)
    return parts


def digests(tensors: Iterable[Tensor]) -> list[float]:
    """Return one number for each tensor, by one transfer from the device to the CPU."""
    numbers = [digest(tensor) for tensor in tensors]
    return torch.stack([number.to(numbers[0].device) for number in numbers]).tolist() if numbers else []


def digest(tensor: Tensor) -> Tensor:
    """Return 3 ‖x‖ + Σ_j (−1)^j x_j.

    A change changes the sum by about its norm if the changes of the elements are independent, and the first term gives
    it a scale: a change of 10 % of ‖x‖ in one tensor is noticed with a probability of 3/4, in several almost surely.
    """
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    flat = tensor.detach().reshape(-1)
    norm: Tensor = torch.linalg.vector_norm(flat if flat.is_floating_point() else flat.to(dtype), dtype=dtype)
    return (3 * norm + flat[::2].sum(dtype=dtype) - flat[1::2].sum(dtype=dtype)).float()


def check_replicas(names: Iterable[str], numbers: Tensor) -> None:
    """Raise if a tensor of one rank is not that of rank 0; the comparison has the same result on all ranks.

    Args:
        names: of the tensors, for the error message.
        numbers: the digest of each tensor, `[ranks, tensors]`.

    Raises:
        RankError.
    """
    same = torch.isclose(numbers, numbers[:1], rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    if bool(same.all()):
        return
    rank, index = (~same).nonzero()[0].tolist()
    raise RankError(
        f"all ranks must have the same values; {list(names)[index]} of rank {rank} differs from that of rank 0. "
        "Initialize the model with the same seed on all ranks, load the same checkpoint of model, optimizer and "
        "pipeline, or broadcast the parameters of rank 0; use the heads in the same order and take the same optimizer "
        "steps on all ranks. Nothing was changed."
    )


def _states(pipe: Pipeline) -> dict[str, Tensor]:
    """Return the sums of the digests of the states, in a fixed number of places.

    A message must have the same length on all ranks, also if states have other entries.
    """
    sums, names = torch.zeros(PLACES), [list[str]() for _ in range(PLACES)]
    for prefix, group in {"": pipe, **{f"{name}: ": group for name, group in pipe.groups.items()}}.items():
        # A rank may have created groups, which have taken no step, in a step that overflowed.
        for member in group.members if group.steps else ():
            for name, value in _entries(f"{prefix}{member.selector}", member.call("state_dict")):
                place = zlib.crc32(name.encode()) % PLACES
                sums[place] += digest(value).cpu()
                names[place].append(name)
    return {f"the state {' or '.join(names[place]) or place}": total for place, total in enumerate(sums)}


def _entries(name: str, state: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors and numbers of a nested state with their names."""
    if isinstance(state, Tensor | int | float):
        yield name, state if isinstance(state, Tensor) else torch.tensor(float(state))
    elif isinstance(state, Mapping | list | tuple):
        for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from _entries(f"{name}.{key}", value)

"""Check that ranks hold replicas of the same parameters, by one element of each."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradhomog.errors import RankError

# Replicas on different processors may differ by the rounding of the optimizer; initial values of different seeds, or
# different heads in the same place, differ by more.
RELATIVE, ABSOLUTE = 1e-2, 1e-4


def first_elements(parameters: Mapping[str, Tensor]) -> list[float]:
    """Return the first element of each tensor, 0 for one without elements. One transfer from the device to the CPU."""
    tensors = parameters.values()
    firsts = [tensor.detach()[(0,) * tensor.dim()].float() for tensor in tensors if tensor.numel()]
    numbers = iter(torch.stack([first.to(firsts[0].device) for first in firsts]).tolist() if firsts else [])
    return [next(numbers) if tensor.numel() else 0.0 for tensor in tensors]


def check_replicas(parameters: Mapping[str, Tensor], elements: Tensor) -> None:
    """Raise if a parameter of one rank is not that of rank 0; the comparison has the same result on all ranks.

    Args:
        parameters: those of this rank, by a description for the error message.
        elements: the first element of each parameter, `[ranks, parameters]`.

    Raises:
        RankError.
    """
    same = torch.isclose(elements, elements[:1], rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    if bool(same.all()):
        return
    rank, index = (~same).nonzero()[0].tolist()
    raise RankError(
        f"all ranks must have the same values of the parameters; {list(parameters)[index]} begins with "
        f"{float(elements[0, index]):.6g} on rank 0 and with {float(elements[rank, index]):.6g} on rank {rank}. "
        "Initialize the model with the same seed on all ranks, load the same checkpoint, or broadcast the parameters "
        "of rank 0; use the heads in the same order on all ranks. Nothing was changed."
    )

"""Copies of small tensors between the CPU and the device of the rows, with as few synchronizations as possible.

An operation on a GPU is only enqueued; reading its result waits until all operations before it have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Devices whose driver reads the memory of a CPU tensor before `to` returns, also with `non_blocking` ("API
# synchronization behavior" in NVIDIA's manual). MPS may read it later, when the tensor has changed.
READ_BEFORE_RETURN = frozenset({"cuda"})


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor to a device; from the CPU to a GPU without waiting for the operations that the GPU has to do.

    >>> to_device(torch.tensor([1.0, 2.0]), torch.device("cpu"), torch.float64)
    tensor([1., 2.], dtype=torch.float64)
    """
    enqueue = tensor.device.type == "cpu" and device.type in READ_BEFORE_RETURN
    return tensor.to(device, tensor.dtype if dtype is None else dtype, non_blocking=enqueue)


def task_index(tasks: Sequence[int], device: torch.device) -> Tensor:
    """Return an index of tasks on a device; indexing by a list would wait for the device."""
    return to_device(torch.tensor(list(tasks), dtype=torch.int64), device)


def to_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors of one dtype and device to the CPU, by one copy."""
    if not tensors or tensors[0].is_cpu:
        return list(tensors)
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
    parts = torch.split(joined, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

"""Draw random numbers without an effect on PyTorch's global generators."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def restore_generators() -> AbstractContextManager[None]:
    """Context after which the generators of the CPU and of all GPUs are in the state that they had before."""
    # All GPUs are named, because by default PyTorch warns on machines with several.
    return torch.random.fork_rng(range(torch.cuda.device_count()))

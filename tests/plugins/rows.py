"""Random rows, and the dtypes that most methods are tested in."""

import pytest
import torch

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def normal(*shape, seed=0, dtype=torch.float64):
    """Standard normal numbers, drawn in float64, so that every dtype has the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)

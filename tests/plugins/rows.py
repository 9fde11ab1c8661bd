"""Random rows, the dtypes that most methods are tested in, and the built-in homogenizers."""

import pytest
import scipy.optimize
import torch

from gradhomog.registry import installed

BUILT_IN = [info.name for info in installed().list("homogenizers") if info.distribution == "gradhomog"]
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def normal(*shape, seed=0, dtype=torch.float64):
    """Standard normal numbers, drawn in float64, so that every dtype has the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def units(rows):
    return rows / rows.norm(dim=1, keepdim=True)


def combine_in_tensors(pipe, rows):
    """The direction, as one vector, for rows whose parameters are two tensors."""
    first = rows.shape[1] // 2 // 2 * 2
    blocks = {"a": rows[:, :first].reshape(len(rows), -1, 2), "b": rows[:, first:]}
    found = pipe.combine(blocks)
    return torch.cat([found["a"].flatten(), found["b"]])


def nearest_without_conflict(rows, row):
    """Return the projection on {d : Jd ≥ 0} by SciPy's non-negative least squares on the rows."""
    rows, row = rows.numpy(), row.numpy()
    return torch.from_numpy(row + scipy.optimize.nnls(rows.T, -row)[0] @ rows)

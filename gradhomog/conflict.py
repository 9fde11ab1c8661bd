"""What to look at before homogenizing: how far the tasks' gradients differ in direction and in size.

All three read a Gramian `[..., tasks, tasks]`, so they cost nothing beside it; all are differentiable where defined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.rows import safe_sqrt


def cosines(gramian: Tensor) -> Tensor:
    """Cosines between rows, `G_ij / √(G_ii · G_jj)`, `[..., tasks, tasks]` in [-1, 1]; 0 for a zero row.

    >>> cosines(torch.tensor([[4.0, 2.0], [2.0, 4.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    norms = safe_sqrt(gramian.diagonal(dim1=-2, dim2=-1))
    safe = torch.where(norms > 0, norms, torch.ones_like(norms))
    # Dividing twice instead of by the product: the product of two small norms may underflow.
    return (gramian / safe.unsqueeze(-1) / safe.unsqueeze(-2)).clamp(-1, 1)


def magnitude_similarity(gramian: Tensor) -> Tensor:
    """`2 n_i n_j / (n_i² + n_j²)` of the row norms n, `[..., tasks, tasks]` in [0, 1]; 1 for equal ones.

    Source: Yu et al. 2020 (PCGrad), definition 2.
    """
    norms = safe_sqrt(gramian.diagonal(dim1=-2, dim2=-1))
    first, second = norms.unsqueeze(-1), norms.unsqueeze(-2)
    larger = torch.maximum(first, second)
    ratio = torch.minimum(first, second) / torch.where(larger > 0, larger, torch.ones_like(larger))
    return torch.where(larger > 0, 2 * ratio / (1 + ratio.square()), torch.ones_like(ratio))


def conflict_rate(gramian: Tensor) -> Tensor:
    """The share of pairs of different tasks whose inner product is negative, `[...]` in [0, 1]; 0 for one task."""
    tasks = gramian.shape[-1]
    pairs = max(tasks * (tasks - 1), 1)
    return (gramian < 0).sum(dim=(-2, -1)).double() / pairs

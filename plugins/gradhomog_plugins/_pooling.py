"""Pool the feature gradients of tasks into vectors that are comparable between tasks."""

from typing import Literal

import torch
from torch import Tensor


def pool_gradients(gradients: Tensor, pool: Literal["task", "sample"]) -> Tensor:
    """Return gradients w.r.t. the features `[tasks, queries, m]` in float64, for `"task"` summed over the queries."""
    return gradients.double().sum(dim=1, keepdim=True) if pool == "task" else gradients.double()


def unit_vectors(vectors: Tensor) -> Tensor:
    """Divide each vector by its length; zero stays zero."""
    norms = vectors.norm(dim=-1, keepdim=True)
    return torch.where(norms > 0, vectors / torch.where(norms > 0, norms, torch.ones_like(norms)), 0.0)


def mean_cosine(vectors: Tensor) -> float:
    """Return the mean, over pairs of tasks and over vectors, of the cosines of unit vectors `[tasks, vectors, m]`."""
    tasks = vectors.shape[0]
    if tasks < 2:
        return 1.0
    total = vectors.sum(0).square().sum(-1) - vectors.square().sum((0, 2))
    return float(total.mean() / (tasks * (tasks - 1)))


def pooled_energy(gradients: Tensor) -> float:
    """Return the mean over tasks of ‖Σ_q g_q‖² / (queries · Σ_q ‖g_q‖²) in [0, 1], the energy that pooling keeps."""
    whole = gradients.double().square().sum((1, 2)) * gradients.shape[1]
    left = gradients.double().sum(1).square().sum(1)
    return float(torch.where(whole > 0, left / torch.where(whole > 0, whole, 1.0), 0.0).mean())

"""Pool the feature gradients of tasks into vectors that are comparable between tasks."""

from typing import Literal

import torch
from torch import Tensor

from gradhomog import OptionError

Pool = Literal["task", "class", "sample"]


def pool_gradients(gradients: Tensor, pool: Pool, targets: Tensor | None = None) -> Tensor:
    """Sum gradients w.r.t. the features `[tasks, queries, m]` to vectors `[tasks, vectors, m]`, float64.

    `"task"`: over all queries; `"class"`: over the queries of each class; `"sample"`: no sum.
    """
    gradients = gradients.double()
    if pool == "task":
        return gradients.sum(dim=1, keepdim=True)
    if pool == "sample":
        return gradients
    if targets is None or targets.is_floating_point():
        raise OptionError('rotate: `pool="class"` requires classes of the queries; got floating-point targets.')
    if bool((targets < 0).any()):
        raise OptionError(f'rotate: `pool="class"` requires classes ≥ 0; got {int(targets.min())}.')
    members = torch.nn.functional.one_hot(targets.long(), int(targets.max()) + 1).to(gradients)
    return members.transpose(1, 2) @ gradients


def unit_vectors(vectors: Tensor) -> Tensor:
    """Divide each vector by its length; zero stays zero."""
    norms = vectors.norm(dim=-1, keepdim=True)
    return torch.where(norms > 0, vectors / torch.where(norms > 0, norms, torch.ones_like(norms)), 0.0)


def matching_orders(vectors: Tensor, reference: Tensor) -> Tensor:
    """Return for each task the order `[tasks, vectors]` in which its unit vectors match those of the reference best.

    Class 3 of one task is unrelated to class 3 of another. The matching is greedy: it starts with the pair of largest
    cosine, where cosines are those with the sum of the reference and the tasks matched before.
    """
    tasks, count, _ = vectors.shape
    orders, total = [], reference.clone()
    for task in range(tasks):
        cosines = unit_vectors(total) @ vectors[task].T
        order = torch.zeros(count, dtype=torch.int64)
        for _ in range(count):
            place, chosen = divmod(int(cosines.argmax()), count)
            order[place] = chosen
            cosines[place, :] = cosines[:, chosen] = -torch.inf
        total += vectors[task][order]
        orders.append(order)
    return torch.stack(orders)


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

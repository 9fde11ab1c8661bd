"""Measures of conflict between the tasks' gradients: cosines, conflict rate and distances.

The measures read a Gramian `[..., tasks, tasks]`, so their own cost is negligible. All but the conflict rate are
differentiable where they are defined.
"""

import torch
from torch import Tensor

from gradhomog.rows.arithmetic import safe_sqrt
from gradhomog.solvers.scaling import require_square


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


def conflict_rate(gramian: Tensor) -> Tensor:
    """The share of pairs of different tasks whose inner product is negative, `[...]` in [0, 1]; 0 for one task."""
    tasks = gramian.shape[-1]
    pairs = max(tasks * (tasks - 1), 1)
    return (gramian < 0).sum(dim=(-2, -1)).double() / pairs


def distances(gramian: Tensor) -> Tensor:
    """Distances between rows by the law of cosines, `[..., tasks, tasks]` ≥ 0; the diagonal is exactly 0.

    d_ij² = n_i² + n_j² − 2 n_i n_j cos(g_i, g_j),  computed as (G_ii − G_ij) + (G_jj − G_ij)

    Both differences are exact for nearly equal rows (Sterbenz), so the only error is the rounding u of the Gramian:
    d_ij² is accurate to about 4u (G_ii + G_jj). Rows closer than about 3√u of their norm (3e-8 in float64, 7e-4 if the
    Gramian was multiplied in float32) therefore cannot be distinguished from equal rows; subtract the rows if that
    matters.

    Differentiable; the derivative at distance zero is defined as zero. Cost: O(tasks²).

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, section "Theoretical Analysis". Deviation: the paper infers
    that homogenization reduces the distance of *every* pair. Equal norms alone can increase it (0.2 → 6.8 if the norms
    0.1, 0.1 and 10 are set to their mean); `tests/theory/test_law_of_cosines.py` tests the statements that hold.

    >>> distances(torch.tensor([[9.0, 0.0], [0.0, 16.0]]))
    tensor([[0., 5.],
            [5., 0.]])

    Raises:
        OptionError: `gramian` is not square in its last two dimensions.
    """
    require_square(gramian)
    squares = gramian.diagonal(dim1=-2, dim2=-1)
    return safe_sqrt((squares.unsqueeze(-1) - gramian) + (squares.unsqueeze(-2) - gramian))

"""Aligned-MTL: turn the tasks' gradients into orthogonal ones of one length, changing them as little as that allows."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, hookimpl
from gradhomog_plugins._unit_rows import ROUNDING

ScaleMode = Literal["min", "median", "rmse"]


class AlignedMTL(Homogenizer):
    """The rows become those of the matrix with equal singular values that is nearest to them.

    B = √s V Λ^(−1/2) Vᵀ,  G = V Λ Vᵀ over the eigenvalues that are not zero;  the rows become B J
    d = 1/N Σ_i (B J)_i  (`scale="mean"`)  or  Σ_i (B J)_i  (`scale="paper"`)

    Args:
        scale_mode: s, the square of the new rows' length: `"min"`, the least eigenvalue; `"median"` (the lower of two);
            or `"rmse"`, the mean.
        scale: see above.

    With independent rows the new ones are orthogonal, of length √s, and ⟨d, g_i⟩ may be negative all the same. An
    eigenvalue is zero where the rows are dependent: N identical rows stay as they are, zero rows stay zero, of opposite
    rows of one length nothing is left. Rows within about 0.1 degrees of each other count as parallel: float32 rows
    cannot tell, and `"min"` would take their rounding for the least eigenvalue.

    Differentiable in the rows twice, as long as their rank does not change; at equal eigenvalues too, where
    differentiating eigenvectors is not. Where several eigenvalues are the least (or the median), s has a kink, and
    counts as their mean. State: none. Cost: two eigendecompositions of N×N matrices.

    Source: Senushkin et al. 2023, "Independent Component Alignment for Multi-Task Learning", arXiv 2305.19000,
    algorithm 1; `scale_mode` as in the authors' code.

    Deviations: (1) the mean by default; the authors' code sums, TorchJD takes the mean; (2) the rank is that of the
    cosines, with a tolerance relative to the rows; theirs is that of the dtype, relative to the longest row: a row 1000
    times as short as another is dropped in float32, and float64 rows are independent by their rounding (measured: for
    float32 rows a, 0.3 a, b of 10⁵ parameters, handed over in float64, TorchJD's d is 10⁷ times too short);
    (3) exact second derivatives.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("aligned_mtl").combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, scale_mode: ScaleMode = "min", scale: Literal["mean", "paper"] = "mean") -> None:
        self.scale_mode, self.scale = scale_mode, scale

    def mix(self, evidence: Evidence) -> Tensor:
        mixing = balance(evidence.gramian(), self.scale_mode)
        return mixing if self.scale == "mean" else evidence.tasks * mixing


def balance(gramian: Tensor, scale_mode: ScaleMode = "min") -> Tensor:
    """The mixing matrix B, symmetric, float64 `[tasks, tasks]`."""
    gramian, independent = _without_rounding(gramian)
    values, vectors = torch.linalg.eigh(gramian.detach())
    tolerance = values[-1] * (len(values) * torch.finfo(values.dtype).eps)
    kept = independent & (values > tolerance)
    roots = torch.where(kept, values, torch.inf).sqrt()
    inverse = (vectors / roots) @ vectors.mT
    square = _square(values, kept, scale_mode)
    if torch.is_grad_enabled():
        # Zero as a number; its derivatives are those of G among its eigenvectors, which are held fast.
        moved = vectors.T @ (gramian - gramian.detach()) @ vectors
        real = kept.to(values.dtype)
        inverse = inverse + vectors @ _inverse_root_moved(roots.masked_fill(~kept, 1.0), real, moved) @ vectors.T
        equal = (values - square).abs() <= tolerance + 1e-9 * square
        square = square + _mean_moved(values, real if scale_mode == "rmse" else real * equal, moved)
        square = torch.where(kept[-1], square, 1.0)  # or the derivative of its root is infinite
    mixing: Tensor = square.sqrt() * inverse
    return mixing


def _square(values: Tensor, kept: Tensor, scale_mode: ScaleMode) -> Tensor:
    """s, of the eigenvalues kept; zero if none is."""
    if scale_mode == "min":
        return torch.where(kept, values, values[-1]).min()
    if scale_mode == "rmse":
        return (values * kept).sum() / kept.sum().clamp_min(1)
    place = (len(values) - 1 + kept.logical_not().sum()) // 2
    return values.gather(0, place.clamp_max(len(values) - 1)[None])[0]


def _without_rounding(gramian: Tensor) -> tuple[Tensor, Tensor]:
    """The Gramian without what rounding has left where rows are dependent: cosines get eigenvalues of zero there.

    And a mask that leaves out as many of the least eigenvalues. Both take it: what is left of the former is rounding in
    float64, and the least eigenvalues of G alone may be those of a short row.
    """
    constant = gramian.detach()
    norms = constant.diagonal().sqrt()
    products = torch.outer(norms, norms)
    values, vectors = torch.linalg.eigh((constant / products).nan_to_num(0.0, 0.0, 0.0))  # a zero row has no cosines
    independent = values > ROUNDING * len(values)
    rounding = (vectors * values.masked_fill(independent, 0.0)) @ vectors.mT
    return gramian - products * rounding, independent


def _inverse_root_moved(roots: Tensor, real: Tensor, moved: Tensor) -> Tensor:
    """What becomes of diag(λ)^(−1/2), zero at zero eigenvalues, when diag(λ) moves by E: to the second order in E.

    f[λ_i, λ_j] E_ij + Σ_k f[λ_i, λ_k, λ_j] E_ik E_kj with divided differences f[…] of f(x) = x^(−1/2), f(0) = 0
    (Higham 2008, "Functions of Matrices", theorem 3.9 and its proof); in a = √λ they are no differences, and finite at
    equal eigenvalues.
    """
    zero = 1 - real
    a, b = roots[:, None], roots
    both = real[:, None] * real
    first = -both / (a * b * (a + b)) + real[:, None] * zero / a**3 + zero[:, None] * real / b**3
    # f[a, b, 0] and f[a, 0, 0], then f[a, b, c] and all four together, [i, k, j].
    pair = -both * (a * a + a * b + b * b) / (a**3 * b**3 * (a + b))
    single = real / roots**5
    a, b, c = roots[:, None, None], roots[:, None], roots
    second = both[:, :, None] * real * (a + b + c) / (a * b * c * (a + b) * (b + c) * (c + a))
    second = second + pair[:, :, None] * zero + pair[:, None, :] * zero[:, None] + pair * zero[:, None, None]
    none = zero[:, None] * zero
    second = second + single[:, None, None] * none + single[:, None] * none[:, None, :] + single * none[:, :, None]
    return first * moved + torch.einsum("ikj,ik,kj->ij", second, moved, moved)


def _mean_moved(values: Tensor, some: Tensor, moved: Tensor) -> Tensor:
    """What becomes of the mean of some eigenvalues: that of E_ii + Σ_j E_ij² / (λ_i − λ_j), j not among them."""
    apart = some[:, None] * (1 - some)
    gaps = torch.where(apart > 0, values[:, None] - values, torch.ones_like(moved))
    return some @ (moved.diagonal() + (apart * moved.square() / gaps).sum(dim=1)) / some.sum().clamp_min(1)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=AlignedMTL,
        summary="orthogonal gradients of one length, as near to the tasks' own as can be",
        reference="Senushkin et al. 2023, arXiv 2305.19000",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

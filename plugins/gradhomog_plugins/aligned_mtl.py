"""Aligned-MTL: turn the tasks' gradients into orthogonal ones of one length, changing them as little as that allows."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, gramian_rounding, hookimpl
from gradhomog_plugins._unit_rows import unit_gramian

ScaleMode = Literal["min", "median", "rmse"]


class AlignedMTL(Homogenizer):
    """Replace the rows by the nearest matrix whose singular values, except zeros, are all √s.

        G = V Λ Vᵀ over the eigenvalues that are not zero,  B = √s V Λ^(−1/2) Vᵀ
        ĝ_i = (B J)_i, J the matrix of the rows
        d = 1/N Σ_i ĝ_i;  paper's scale: d = Σ_i ĝ_i

    Args:
        scale_mode: s, the squared length of the new rows: `"min"`, the smallest eigenvalue of G; `"median"`, the lower
            median; or `"rmse"`, the mean.

    Use it when a few long or nearly parallel rows dominate the step: the Gramian has a large condition number, although
    no cosine needs to be negative. It is harmful where a direction of small singular value is noise, because all
    directions get the same length. It does not exclude conflicts: for independent rows ⟨d, g_i⟩ may still be negative.

    Independent rows become orthogonal rows of length √s. For dependent rows some eigenvalues are zero: N identical rows
    are unchanged, zero rows stay zero, and opposite rows of one length give zero. Float32 rows within about 0.1 degrees
    of each other count as parallel, float64 rows within 1e-7 radians: below that, `"min"` would use their rounding
    error as the smallest eigenvalue.

    Differentiable twice in the rows where their rank does not change, including at equal eigenvalues, where
    eigenvectors have no derivative. Where several eigenvalues are the smallest (or the median), s has a kink; its
    derivative there is that of their mean.

    State: none.

    Cost: two decompositions of N×N matrices.

    Source: Senushkin et al. 2023, "Independent Component Alignment for Multi-Task Learning", arXiv 2305.19000,
    algorithm 1; `scale_mode` as in the authors' code.

    Deviations: (1) The mean by default; the authors' code sums, TorchJD uses the mean. (2) The rank is that of the
    cosines, with a tolerance relative to the rows. The authors' tolerance is that of the dtype, relative to the longest
    row: a row 1000 times shorter than another is dropped in float32, and float64 rows that differ by rounding count as
    independent (measured: for float32 rows a, 0.3 a, b of 10⁵ parameters, passed in float64, TorchJD's d is 10⁷ times
    too short). (3) Singular values of a factor of G instead of eigenvalues of G, so that lengths of rows may differ by
    a factor of 1e14 instead of 1e7. (4) First and second derivatives at equal eigenvalues; TorchJD 0.18 has no finite
    first derivative there.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("aligned_mtl").combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, scale_mode: ScaleMode = "min") -> None:
        self.scale_mode = scale_mode

    def mix(self, step: Step) -> Tensor:
        return balance(step.gramian(), self.scale_mode, gramian_rounding(step.dtype))

    def paper_scale(self, step: Step) -> float:
        return step.tasks


def balance(
    gramian: Tensor, scale_mode: ScaleMode = "min", rounding: float = gramian_rounding(torch.float64)
) -> Tensor:
    """The mixing matrix B, float64 `[tasks, tasks]`.

    With the cosines Q M Qᵀ = D⁻¹ G D⁻¹ of the rows, D their norms, G = F Fᵀ for F = D Q M^(1/2) = W S Vᵀ, and
    B = √s W Vᵀ M^(−1/2) Qᵀ D⁻¹: the singular values S of F keep twice as many digits of short rows as Λ = S².
    """
    norms, unit = unit_gramian(gramian)
    lengths = norms.detach()
    present = gramian.detach().diagonal().sign()
    values, vectors = torch.linalg.eigh(unit.detach())
    kept = values > rounding * len(values)
    roots = torch.where(kept, values, 1.0).sqrt() * kept
    left, singular, right = torch.linalg.svd((present * lengths)[:, None] * vectors * roots)
    real = torch.arange(len(values), device=values.device) < kept.sum()
    inverse = torch.where(kept, vectors / torch.where(kept, roots, 1.0), 0.0).mT * (present / lengths)
    square = _square(singular, real, scale_mode)
    mixing: Tensor = (square.sqrt() * left * real) @ right @ inverse
    if torch.is_grad_enabled() and gramian.requires_grad:
        moved = _differentiable(gramian, norms, unit, rounding * len(values), left, singular * real, square, scale_mode)
        mixing = mixing + (moved - moved.detach())
    return mixing


def _square(singular: Tensor, real: Tensor, scale_mode: ScaleMode) -> Tensor:
    """s from the singular values in descending order, of which the first are `real`; zero if none is."""
    squares, count = singular.square() * real, real.sum()
    if scale_mode == "rmse":
        return squares.sum() / count.clamp_min(1)
    place = count - 1 if scale_mode == "min" else count // 2  # of two in the middle the lower
    return squares.gather(0, place.clamp_min(0)[None])[0]


def _differentiable(
    gramian: Tensor, norms: Tensor, unit: Tensor, tolerance: float, basis: Tensor, roots: Tensor, square: Tensor,
    scale_mode: ScaleMode,
) -> Tensor:  # fmt: skip
    """√s G^(1/2) G⁻, with the right first and second derivatives by G at equal eigenvalues too.

    R = G^(1/2) solves R² = G. In the basis of its eigenvectors, a constant, Newton's step from R = diag(λ^(1/2)) is
    (E − R²)_ij / (λ_i^(1/2) + λ_j^(1/2)), E the Gramian; the first gives the first derivative, another the second.
    """
    real = roots > 0
    pairs = real[:, None] | real
    slopes = torch.where(pairs, roots[:, None] + roots, 1.0)
    moved = basis.mT @ (gramian - gramian.detach()) @ basis
    root = constant = torch.diag(roots)
    for _ in range(2):
        root = root + pairs * (constant @ constant + moved - root @ root) / slopes
    values = roots.square()
    group = real & ((scale_mode == "rmse") | ((values - square).abs() <= 1e-9 * square))
    square = square + _mean_moved(values, group.to(values), moved)
    square = torch.where(real.any(), square, 1.0)  # or the derivative of its root is infinite
    inverse = torch.linalg.pinv(unit, atol=tolerance, rtol=0.0, hermitian=True) / torch.outer(norms, norms)
    changed: Tensor = square.sqrt() * (basis @ root @ basis.mT) @ inverse
    return changed


def _mean_moved(values: Tensor, group: Tensor, moved: Tensor) -> Tensor:
    """The change of the mean of a group of eigenvalues: that of E_ii + Σ_j E_ij² / (λ_i − λ_j), j not in the group."""
    apart = group[:, None] * (1 - group)
    gaps = torch.where(apart > 0, values[:, None] - values, 1.0)
    return group @ (moved.diagonal() + (apart * moved.square() / gaps).sum(dim=1)) / group.sum().clamp_min(1)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=AlignedMTL,
        summary="orthogonal gradients of one length, as near to the tasks' own as can be",
        reference="Senushkin et al. 2023, arXiv 2305.19000",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

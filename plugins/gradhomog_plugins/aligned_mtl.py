"""Aligned-MTL: replace the gradients by the nearest orthogonal gradients of equal length."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, gramian_rounding, hookimpl
from gradhomog_plugins._per_task import Preferences, relative_weights
from gradhomog_plugins._unit_rows import gramian_of_close_rows, pseudo_inverse, unit_gramian

ScaleMode = Literal["min", "median", "rmse"]


class AlignedMTL(Homogenizer):
    """Replace the rows by the nearest matrix whose singular values, except zeros, are all √s.

        G = V Λ Vᵀ over the eigenvalues that are not zero,  B = √s V Λ^(−1/2) Vᵀ
        ĝ_i = (B J)_i, J the matrix of the rows
        d = 1/N Σ_i ω_i ĝ_i,  ω_i = w_i / mean_j w_j;  paper's scale: d = Σ_i ω_i ĝ_i

    Args:
        scale_mode: s, the squared length of the new rows: `"min"`, the smallest eigenvalue of G; `"median"`, the lower
            median; or `"rmse"`, the mean.
        weights: w_i ≥ 0, a list by position or a dict by name of a task, with the entry `"*"` for other names, as in
            `static`; by default all equal.

    Use it when a few long or nearly parallel rows dominate the step: the Gramian has a large condition number, although
    no cosine needs to be negative. It is harmful where a direction of small singular value is noise, because all
    directions get the same length. It does not exclude conflicts: for independent rows ⟨d, g_i⟩ may still be negative.

    As in `static`, the mean of w is also over absent tasks: names in `weights`, and those of earlier steps.

    Independent rows become orthogonal rows of length √s. For dependent rows some eigenvalues are zero: N identical rows
    are unchanged, zero rows stay zero, and opposite rows of one length give zero. Which rows count as parallel: as
    for `config`; otherwise `"min"` could use their rounding error as the smallest eigenvalue. Other float32 rows give
    the direction of the same rows in float64 up to 1e-5 (measured for 0.3 to 10 degrees).

    Differentiable twice in the rows where their rank does not change, including at equal eigenvalues, where
    eigenvectors have no derivative. Where several eigenvalues are the smallest (or the median), s has a kink; its
    derivative there is that of their mean.

    State: none.

    Cost: two decompositions of N×N matrices.

    Source: Senushkin et al. 2023, "Independent Component Alignment for Multi-Task Learning", arXiv 2305.19000,
    algorithm 1; `scale_mode` as in the authors' code.

    Deviations: (1) The mean by default; the authors' code sums, TorchJD uses the mean. (2) The rank is computed from
    the cosines, with a tolerance relative to the rows. The authors' tolerance is the machine epsilon of the dtype,
    relative to the longest row: a row 1000 times shorter than another is dropped in float32, and float64 rows that
    differ by rounding count as independent (measured: for float32 rows a, 0.3 a, b of 10⁵ parameters, passed in
    float64, TorchJD's d is 10⁷ times too short). (3) Singular values of a factor of G instead of eigenvalues of G, so
    that lengths of rows may differ by a factor of 1e14 instead of 1e7. (4) First and second derivatives at equal
    eigenvalues; TorchJD 0.18 has no finite first derivative there. (5) w is divided by its mean; TorchJD multiplies by
    its `pref_vector`, the same for a sum of one.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("aligned_mtl").combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, scale_mode: ScaleMode = "min", weights: Preferences = None) -> None:
        self.scale_mode, self.weights = scale_mode, weights
        self.weights_absent = weights is not None

    def mix(self, step: Step) -> Tensor:
        gramian, rounding = gramian_of_close_rows(step)
        return relative_weights(self.weights, step)[:, None] * balancing_matrix(gramian, self.scale_mode, rounding)

    def paper_scale(self, step: Step) -> float:
        return step.tasks


def balancing_matrix(
    gramian: Tensor, scale_mode: ScaleMode = "min", rounding: float = gramian_rounding(torch.float64)
) -> Tensor:
    """Return the mixing matrix B, float64 `[tasks, tasks]`.

    With the cosines Q M Qᵀ = D⁻¹ G D⁻¹ of the rows and their norms D, G = F Fᵀ for F = D Q M^(1/2) = W S Vᵀ, and
    B = √s W Vᵀ M^(−1/2) Qᵀ D⁻¹. The singular values S of F have twice as many exact digits for short rows as Λ = S².
    """
    numbers = gramian.detach().numpy()
    present = numbers.diagonal() > 0
    norms, unit = unit_gramian(np, numbers)
    values, vectors = np.linalg.eigh(unit)
    kept = values > rounding * len(values)
    roots = np.sqrt(np.where(kept, values, 0.0))
    left, singular, right = np.linalg.svd((norms * present)[:, None] * vectors * roots)
    singular[kept.sum() :] = 0.0
    square = _square(singular[: kept.sum()] ** 2, scale_mode)
    inverse = (vectors / np.where(kept, roots, np.inf)).T * (present / norms)
    mixing = torch.as_tensor(np.sqrt(square) * (left * (singular > 0)) @ right @ inverse)
    if torch.is_grad_enabled() and gramian.requires_grad:
        change = _with_derivatives(
            gramian, rounding * len(values), torch.as_tensor(left), torch.as_tensor(singular), square, scale_mode
        )
        mixing = mixing + (change - change.detach())
    return mixing


def _square(squares: Any, scale_mode: ScaleMode) -> float:
    """Return s from the squares of the singular values that are not zero, in descending order; zero if none is."""
    if not len(squares):
        return 0.0
    if scale_mode == "rmse":
        return float(squares.mean())
    return float(squares[-1 if scale_mode == "min" else len(squares) // 2])  # the lower of two medians


def _with_derivatives(
    gramian: Tensor, tolerance: float, basis: Tensor, roots: Tensor, square: float, scale_mode: ScaleMode
) -> Tensor:
    """Return √s G^(1/2) G⁻ with exact first and second derivatives w.r.t. G, also at equal eigenvalues.

    R = G^(1/2) solves R² = G. In the basis of its eigenvectors, a constant, a Newton step from R = diag(λ^(1/2)) is
    (E − R²)_ij / (λ_i^(1/2) + λ_j^(1/2)), E the Gramian. The first step gives the first derivative, the second step
    the second.
    """
    nonzero = roots > 0
    pairs = nonzero[:, None] | nonzero
    root_sums = torch.where(pairs, roots[:, None] + roots, 1.0)
    change = basis.mT @ (gramian - gramian.detach()) @ basis
    root = constant = torch.diag(roots)
    for _ in range(2):
        root = root + pairs * (constant @ constant + change - root @ root) / root_sums
    values = roots.square()
    group = nonzero & ((scale_mode == "rmse") | ((values - square).abs() <= 1e-9 * square))
    moved = square + _mean_change(values, group.to(values), change)
    moved = torch.where(nonzero.any(), moved, 1.0)  # avoids the infinite derivative of the root at zero
    norms, unit = unit_gramian(torch, gramian)
    inverse = pseudo_inverse(torch, unit, tolerance) / torch.outer(norms, norms)
    result: Tensor = moved.sqrt() * (basis @ root @ basis.mT) @ inverse
    return result


def _mean_change(values: Tensor, group: Tensor, change: Tensor) -> Tensor:
    """Return the change of the mean eigenvalue of a group: the mean of E_ii + Σ_j E_ij² / (λ_i − λ_j), j outside it."""
    apart = group[:, None] * (1 - group)
    gaps = torch.where(apart > 0, values[:, None] - values, 1.0)
    return group @ (change.diagonal() + (apart * change.square() / gaps).sum(dim=1)) / group.sum().clamp_min(1)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=AlignedMTL,
        summary="replaces the gradients by the nearest orthogonal ones of equal length",
        reference="Senushkin et al. 2023, arXiv 2305.19000",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )

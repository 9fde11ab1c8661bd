"""Norms, cosines and ratios of expected gradients, and their alignment with the plain step, without the noise of rows.

The cosine of two noisy rows is close to zero although their expectations may agree, because the norms of the rows are
mostly noise. The estimates of this module use products of rows of different batches only, in which noise averages out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import Estimate, TransformedEstimate, jackknife
from gradhomog.diagnosis.labelled_gramian import LabelledGramian


@dataclass(frozen=True, eq=False)
class ExpectedGradients:
    """Estimates about the expected gradients μ_k = E g_k of K labels (tasks or domains).

    Expectations are over batches and the random numbers of a step, at fixed parameters.

    A quantity that requires the norm of μ_k is unresolved (NaN) unless the interval of ‖μ_k‖² is above zero: noise of
    the estimate could otherwise give any cosine. Values are never clamped: the estimate of a squared norm may be
    negative, and that of a cosine may exceed 1.

    Attributes:
        inner_products: ⟨μ_k, μ_l⟩ `[K, K]`; the diagonal is ‖μ_k‖². Unbiased.
        norms: ‖μ_k‖ `[K]`.
        cosines: ⟨μ_k, μ_l⟩ / (‖μ_k‖ ‖μ_l‖) `[K, K]`.
        distances: ‖μ_k − μ_l‖ `[K, K]`; unresolved unless the interval of its square is above zero.
        signal_fractions: ‖μ_k‖² / E‖g_k‖² `[K]`, the share of a row's squared norm that is not noise. An interval that
            contains zero means that no signal is measurable with so many batches.
        pooled_signal_fraction: mean ‖μ_k‖² over labels divided by the mean E‖g_k‖², a scalar.
        pooled_cosine: mean ⟨μ_k, μ_l⟩ over k ≠ l divided by the mean ‖μ_k‖², a scalar: 1 if all μ_k are equal, 0 if
            they are orthogonal on average. It requires only the mean of the squared norms to be resolved.
        aligned_conflict_rates: the share of pairs of single rows that would conflict by noise alone `[K, K]` if μ_k and
            μ_l had their estimated norms and cosine 1: Φ(−‖μ_k‖ ‖μ_l‖ / s_kl), with s_kl the standard deviation of
            the inner product of independent rows. Approximation: the inner product is normal, and s_kl does not depend
            on the cosine.
    """

    inner_products: Estimate
    norms: Estimate
    cosines: Estimate
    distances: Estimate
    signal_fractions: Estimate
    pooled_signal_fraction: Estimate
    pooled_cosine: Estimate
    aligned_conflict_rates: Estimate


def expected_gradients(gramian: LabelledGramian) -> ExpectedGradients:
    """Estimate inner products of expected gradients from pairs of rows of different batches:

        ⟨μ_k, μ_l⟩ ≈ U_kl = mean of ⟨g_k^b, g_l^b'⟩ over b ≠ b'

    Norms, cosines, distances and fractions are functions of U; intervals are those of `jackknife` over batches. Where
    noise dominates, their widths decrease as 1/B, otherwise as 1/√B: if signal fractions are unresolved with 48
    batches, several hundred resolve fractions a tenth as large.

    Args:
        gramian: of rows at the same parameters. Batches are independent; rows of one batch need not be, because
            homogenizers mix them.

    Cost: O(rows²) time and memory.

    Raises:
        OptionError: there are fewer than three batches.

    Source: U-statistics of degree two, Hoeffding 1948. The conflict of single rows was measured, without this
    separation, by Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, figure 1.

    >>> generator = torch.Generator().manual_seed(0)
    >>> noise = torch.randn(64, 2, 500, generator=generator)  # of norm 22, around means of norm 5 and cosine 0.6
    >>> rows = noise + 5 * torch.tensor([[1.0, 0.0], [0.6, 0.8]]) @ torch.eye(2, 500)
    >>> found = expected_gradients(LabelledGramian.of_rows(rows))
    >>> print(f"{found.cosines.value[0, 1]:.2f} ± {found.cosines.half_width[0, 1]:.2f}")
    0.60 ± 0.08
    """
    inner, without = gramian.inner_products
    products = jackknife(inner, without)
    positive = products.diagonal().low > 0
    both = positive[:, None] & positive

    def apply(function: Callable[[Tensor], Tensor], condition: Tensor) -> Estimate:
        return jackknife(function(inner), function(without)).where(condition)

    squared_distances = apply(_squared_distances, torch.ones_like(both))
    apart = (squared_distances.low > 0) | torch.eye(len(both), dtype=torch.bool)
    energy, energy_without = gramian.mean_squares
    mean_square = jackknife(squares(inner).mean(-1), squares(without).mean(-1))
    variance, variance_without = _variances(gramian, inner, without)
    return ExpectedGradients(
        inner_products=products,
        norms=apply(lambda u: squares(u).sqrt(), positive),
        cosines=apply(lambda u: u / _norm_products(u), both),
        distances=apply(lambda u: _squared_distances(u).sqrt(), apart),
        signal_fractions=signal_fractions(gramian),
        pooled_signal_fraction=jackknife(
            squares(inner).mean(-1) / energy.mean(-1), squares(without).mean(-1) / energy_without.mean(-1)
        ),
        pooled_cosine=apply(_pooled_cosine, mean_square.low > 0),
        aligned_conflict_rates=jackknife(
            _below_zero(_norm_products(inner), variance), _below_zero(_norm_products(without), variance_without)
        ).where(both),
    )


def signal_fractions(gramian: LabelledGramian) -> Estimate:
    """Return ‖μ_k‖² / E‖g_k‖² `[K]`; NaN for a label whose rows are all zero: it has neither signal nor noise.

    If ‖g_k‖ has heavy tails, few batches underestimate E‖g_k‖², and intervals contain the true value in 71 to 91 % of
    cases instead of 95 %; neither intervals of the logarithm nor percentiles of a bootstrap do better (decision 42).
    """
    (inner, without), (energy, energy_without) = gramian.inner_products, gramian.mean_squares
    return jackknife(squares(inner) / energy, squares(without) / energy_without)


def squares(inner: Tensor) -> Tensor:
    """The squared norms `[..., K]` of inner products `[..., K, K]`."""
    return inner.diagonal(dim1=-2, dim2=-1)


def _norm_products(inner: Tensor) -> Tensor:
    """‖μ_k‖ ‖μ_l‖ `[..., K, K]`; NaN if a squared norm is negative."""
    norms = squares(inner).sqrt()
    return norms[..., :, None] * norms[..., None, :]


def _squared_distances(inner: Tensor) -> Tensor:
    norms = squares(inner)
    return (norms[..., :, None] - inner) + (norms[..., None, :] - inner)


def _pooled_cosine(inner: Tensor) -> Tensor:
    labels, total = inner.shape[-1], squares(inner).sum(-1)
    return (inner.sum((-2, -1)) - total) / ((labels - 1) * total)


def _variances(gramian: LabelledGramian, inner: Tensor, without: Tensor) -> tuple[Tensor, Tensor]:
    """The variance of the inner product of rows of different batches, of all batches and without each."""
    second, second_without = gramian.different_batches(gramian.gramian.square())
    return second - inner.square(), second_without - without.square()


def _below_zero(mean: Tensor, variance: Tensor) -> Tensor:
    """The probability that a normal variable is negative."""
    # The variance of rows without noise is a difference of equal numbers, which rounding can make negative.
    probability: Tensor = torch.special.ndtr(-mean / variance.clamp_min(0).sqrt())
    return probability


def norm_ratios(gramian: LabelledGramian) -> TransformedEstimate:
    """Estimate ‖μ_k‖ / ‖μ_l‖ of the expected gradients `[K, K]`, in (0, ∞); the interval is that of the logarithm.

    NaN unless the intervals of ‖μ_k‖² and ‖μ_l‖² are above zero.

    Raises:
        OptionError: there are fewer than three batches.

    >>> rows = torch.tensor([[6.0, 0.0], [0.0, 2.0]]).repeat(4, 1, 1)  # without noise
    >>> found = norm_ratios(LabelledGramian.of_rows(rows))
    >>> print(f"{found.value[0, 1]:.2f} ({found.low[0, 1]:.2f} to {found.high[0, 1]:.2f})")
    3.00 (3.00 to 3.00)
    """
    inner, without = gramian.inner_products
    positive = jackknife(inner, without).diagonal().low > 0
    logarithms = jackknife(_log_ratios(inner), _log_ratios(without)).where(positive[:, None] & positive)
    return TransformedEstimate.of(logarithms, torch.exp)


def _log_ratios(inner: Tensor) -> Tensor:
    logarithms = inner.diagonal(dim1=-2, dim2=-1).log() / 2
    return logarithms[..., :, None] - logarithms[..., None, :]


@dataclass(frozen=True, eq=False)
class StepAlignment:
    """Expected gradients μ_k of K labels relative to the plain step: the negative of their mean μ̄ = Σ_k p_k μ_k.

    p_k is the share of label k among the rows of a batch, on average over the measured batches; 1/K if every batch has
    one row of each label. Intervals are for these shares.

    Conflict of two tasks is harmless if the mean still decreases both losses: for two tasks of norms n₁ ≤ n₂ and cosine
    c, the step increases the loss of the first if and only if n₁ < −c n₂.

    Attributes:
        products: ⟨μ_k, μ̄⟩ `[K]`; if negative, a small plain step increases the loss of task k. Unbiased.
        cosines: ⟨μ_k, μ̄⟩ / (‖μ_k‖ ‖μ̄‖) `[K]`; NaN unless the intervals of both norms are above zero.
    """

    products: Estimate
    cosines: Estimate


def step_alignment(gramian: LabelledGramian) -> StepAlignment:
    """Estimate the alignment from pairs of rows of different batches.

    Raises:
        OptionError: there are fewer than three batches.

    >>> rows = torch.tensor([[1.0, 0.0], [-3.0, 4.0]]).repeat(3, 1, 1)  # norms 1 and 5, cosine −0.6: 1 < 0.6 · 5
    >>> step_alignment(LabelledGramian.of_rows(rows)).products.value
    tensor([-1., 11.], dtype=torch.float64)
    """
    inner, without = gramian.inner_products
    counts = gramian.row_counts
    shares = (counts / counts.sum(1, keepdim=True)).mean(0)
    mean_square = jackknife(inner @ shares @ shares, without @ shares @ shares)
    resolved = (jackknife(inner, without).diagonal().low > 0) & (mean_square.low > 0)
    return StepAlignment(
        products=jackknife(inner @ shares, without @ shares),
        cosines=jackknife(_cosines_to_mean(inner, shares), _cosines_to_mean(without, shares)).where(resolved),
    )


def _cosines_to_mean(inner: Tensor, shares: Tensor) -> Tensor:
    products = inner @ shares
    found = squares(inner) * (products @ shares)[..., None]
    return products / torch.where(found > 0, found, torch.nan).sqrt()

"""Statistics of rows: single ones, their expectations without noise, the plain step, and the noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.conflict import cosines
from gradhomog.diagnosis.estimates import Estimate, TransformedEstimate, estimate, jackknife
from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.rows.arithmetic import safe_sqrt


@dataclass(frozen=True, eq=False)
class SingleRows:
    """Means over single rows g_k of K labels (tasks or domains), with intervals over batches.

    The diagonals of matrices over rows of the same batch are NaN if no batch has two rows of a label.

    Attributes:
        norms: mean of ‖g_k‖ `[K]`.
        cosines: mean cosine of two rows of the same batch `[K, K]`.
        conflict_rates: share of pairs of rows of the same batch with a negative inner product `[K, K]`, in [0, 1].
        independent_conflict_rates: the same for rows of different batches: the conflict that independent noise around
            the expected gradients explains. No distribution is assumed. A different rate within batches is the effect
            of the batch, as of homogenizers that compare its rows.
        mean_cosine, conflict_rate, independent_conflict_rate: means over pairs of different labels, scalars.
    """

    norms: Estimate
    cosines: Estimate
    conflict_rates: Estimate
    independent_conflict_rates: Estimate
    mean_cosine: Estimate
    conflict_rate: Estimate
    independent_conflict_rate: Estimate


def single_rows(gramian: LabelledGramian) -> SingleRows:
    """Average norms of rows, and cosines and conflict of pairs of rows, by label.

    Cost: O(rows²) time and memory.

    >>> rows = torch.tensor([[1.0, 0.0], [-3.0, 4.0]]).repeat(3, 1, 1)  # the same two rows in three batches
    >>> found = single_rows(LabelledGramian.of_rows(rows))
    >>> found.norms.value, found.cosines.value[0, 1], found.conflict_rates.value[0, 1]
    (tensor([1., 5.], dtype=torch.float64), tensor(-0.6000, dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    products = gramian.gramian
    angles, conflicts = cosines(products), (products < 0).double()
    same_batch, different_batches = gramian.same_batch, gramian.different_batches
    return SingleRows(
        norms=jackknife(*gramian.each_row(safe_sqrt(products.diagonal()))),
        cosines=jackknife(*same_batch(angles)),
        conflict_rates=jackknife(*same_batch(conflicts)),
        independent_conflict_rates=jackknife(*different_batches(conflicts)),
        mean_cosine=estimate(_pair_mean, same_batch(angles)),
        conflict_rate=estimate(_pair_mean, same_batch(conflicts)),
        independent_conflict_rate=estimate(_pair_mean, different_batches(conflicts)),
    )


def _pair_mean(matrix: Tensor) -> Tensor:
    """The mean over different labels `[...]` of a matrix `[..., K, K]`; pairs that no batch has are NaN."""
    different = ~torch.eye(matrix.shape[-1], dtype=torch.bool)
    return matrix[..., different].nanmean(-1)


@dataclass(frozen=True, eq=False)
class RowNorms:
    """Norms of single rows g_k of K labels, robust to a few long rows, with intervals over batches.

    Attributes:
        log_differences: mean log ‖g_k‖ − mean log ‖g_l‖ `[K, K]`, the logarithm of the ratio of geometric means; NaN if
            a label has a zero row.
        effective_shares: (mean ‖g_k‖²)² / mean ‖g_k‖⁴ `[K]`, the effective share of rows that contribute to the mean
            squared norm, in [1/B, 1] for B rows: 1 for equal norms, 1/B if one row is much longer than the others.
            Intervals are meaningless for small shares: the moments may not exist.

    Source: of the shares: Kish 1965, "Survey sampling", the effective sample size for weights ‖g‖².
    """

    log_differences: Estimate
    effective_shares: Estimate


def row_norms(gramian: LabelledGramian) -> RowNorms:
    """Return statistics of the norms of rows by label.

    Cost: O(rows).

    >>> rows = torch.tensor([[1.0], [2.0], [1.0], [4.0]]).reshape(4, 1, 1)
    >>> found = row_norms(LabelledGramian.of_rows(rows))
    >>> print(f"{found.effective_shares.value.item():.2f}")  # (22 / 4)² / (274 / 4)
    0.44
    """
    squares = gramian.gramian.diagonal().clamp_min(0)
    # Relative to the largest: fourth powers of norms would overflow.
    relative = squares / torch.where(squares.max() > 0, squares.max(), 1.0)
    return RowNorms(
        log_differences=estimate(_differences, gramian.each_row(squares.log() / 2)),
        effective_shares=estimate(_share, gramian.each_row(relative), gramian.each_row(relative.square())),
    )


def _share(second: Tensor, fourth: Tensor) -> Tensor:
    """The effective share from second and fourth moments; 1 for zero rows, and where only rounding remains."""
    return torch.where(fourth > 0, second.square() / fourth, 1.0).clamp(max=1.0)


def _differences(means: Tensor) -> Tensor:
    """Differences `[..., K, K]` of numbers `[..., K]`; NaN for infinite ones."""
    finite = torch.where(means.isfinite(), means, torch.nan)
    return finite[..., :, None] - finite[..., None, :]


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
        signal_fractions: ‖μ_k‖² / E‖g_k‖² `[K]`, the share of a row's squared norm that is not noise. An interval that
            contains zero means that no signal is measurable with so many batches.
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
    signal_fractions: Estimate
    pooled_cosine: Estimate
    aligned_conflict_rates: Estimate


def expected_gradients(gramian: LabelledGramian) -> ExpectedGradients:
    """Estimate inner products of expected gradients from pairs of rows of different batches:

        ⟨μ_k, μ_l⟩ ≈ U_kl = mean of ⟨g_k^b, g_l^b'⟩ over b ≠ b'

    Norms, cosines and fractions are functions of U; intervals are those of `jackknife` over batches. Where
    noise dominates, their widths decrease as 1/B, otherwise as 1/√B: if signal fractions are unresolved with 48
    batches, several hundred resolve fractions a tenth as large.

    Args:
        gramian: of rows at the same parameters. Batches are independent; rows of one batch need not be, because
            homogenizers mix them.

    Cost: O(rows²) time and memory.

    Source: U-statistics of degree two, Hoeffding 1948. The conflict of single rows was measured, without this
    separation, by Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, figure 1.

    >>> generator = torch.Generator().manual_seed(0)
    >>> noise = torch.randn(64, 2, 500, generator=generator)  # of norm 22, around means of norm 5 and cosine 0.6
    >>> rows = noise + 5 * torch.tensor([[1.0, 0.0], [0.6, 0.8]]) @ torch.eye(2, 500)
    >>> found = expected_gradients(LabelledGramian.of_rows(rows))
    >>> print(f"{found.cosines.value[0, 1]:.2f} ± {found.cosines.half_width[0, 1]:.2f}")
    0.60 ± 0.08
    """
    inner, positive = gramian.inner_products, resolved(gramian)
    both = positive[:, None] & positive
    mean_square = estimate(lambda u: squares(u).mean(-1), inner)
    return ExpectedGradients(
        inner_products=jackknife(*inner),
        norms=estimate(lambda u: squares(u).sqrt(), inner).where(positive),
        cosines=estimate(lambda u: u / _norm_products(u), inner).where(both),
        signal_fractions=signal_fractions(gramian),
        pooled_cosine=estimate(_pooled_cosine, inner).where(mean_square.low > 0),
        aligned_conflict_rates=estimate(
            _aligned_conflict_rates, inner, gramian.different_batches(gramian.gramian.square())
        ).where(both),
    )


def signal_fractions(gramian: LabelledGramian) -> Estimate:
    """Return ‖μ_k‖² / E‖g_k‖² `[K]`; NaN for a label whose rows are all zero: it has neither signal nor noise.

    If ‖g_k‖ has heavy tails, few batches underestimate E‖g_k‖², and intervals contain the true value in 71 to 91 % of
    cases instead of 95 %; neither intervals of the logarithm nor percentiles of a bootstrap do better (decision 42).
    """
    return estimate(lambda u, e: squares(u) / e, gramian.inner_products, gramian.mean_squares)


def squares(inner: Tensor) -> Tensor:
    """The squared norms `[..., K]` of inner products `[..., K, K]`."""
    return inner.diagonal(dim1=-2, dim2=-1)


def _norm_products(inner: Tensor) -> Tensor:
    """‖μ_k‖ ‖μ_l‖ `[..., K, K]`; NaN if a squared norm is negative."""
    norms = squares(inner).sqrt()
    return norms[..., :, None] * norms[..., None, :]


def resolved(gramian: LabelledGramian) -> Tensor:
    """True for labels `[K]` whose interval of ‖μ_k‖² is above zero."""
    return jackknife(*gramian.inner_products).low.diagonal() > 0


def _pooled_cosine(inner: Tensor) -> Tensor:
    labels, total = inner.shape[-1], squares(inner).sum(-1)
    return (inner.sum((-2, -1)) - total) / ((labels - 1) * total)


def _aligned_conflict_rates(inner: Tensor, second_moments: Tensor) -> Tensor:
    """The probability that a normal variable with the mean ‖μ_k‖ ‖μ_l‖ and the variance of single rows is negative."""
    # The variance of rows without noise is a difference of equal numbers, which rounding can make negative.
    deviations = (second_moments - inner.square()).clamp_min(0).sqrt()
    probability: Tensor = torch.special.ndtr(-_norm_products(inner) / deviations)
    return probability


def norm_ratios(gramian: LabelledGramian) -> TransformedEstimate:
    """Estimate ‖μ_k‖ / ‖μ_l‖ of the expected gradients `[K, K]`, in (0, ∞); the interval is that of the logarithm.

    NaN unless the intervals of ‖μ_k‖² and ‖μ_l‖² are above zero.

    >>> rows = torch.tensor([[6.0, 0.0], [0.0, 2.0]]).repeat(4, 1, 1)  # without noise
    >>> found = norm_ratios(LabelledGramian.of_rows(rows))
    >>> print(f"{found.value[0, 1]:.2f} ({found.low[0, 1]:.2f} to {found.high[0, 1]:.2f})")
    3.00 (3.00 to 3.00)
    """
    positive = resolved(gramian)
    logarithms = estimate(lambda u: _differences(squares(u).log() / 2), gramian.inner_products)
    return TransformedEstimate.of(logarithms.where(positive[:, None] & positive), torch.exp)


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

    >>> rows = torch.tensor([[1.0, 0.0], [-3.0, 4.0]]).repeat(3, 1, 1)  # norms 1 and 5, cosine −0.6: 1 < 0.6 · 5
    >>> step_alignment(LabelledGramian.of_rows(rows)).products.value
    tensor([-1., 11.], dtype=torch.float64)
    """
    inner, counts = gramian.inner_products, gramian.row_counts
    shares = (counts / counts.sum(1, keepdim=True)).mean(0)
    mean_square = estimate(lambda u: u @ shares @ shares, inner)
    alignment = estimate(lambda u: _cosines_to_mean(u, shares), inner)
    return StepAlignment(
        products=estimate(lambda u: u @ shares, inner),
        cosines=alignment.where(resolved(gramian) & (mean_square.low > 0)),
    )


def _cosines_to_mean(inner: Tensor, shares: Tensor) -> Tensor:
    products = inner @ shares
    found = squares(inner) * (products @ shares)[..., None]
    return products / torch.where(found > 0, found, torch.nan).sqrt()


ROUNDING = 1e-10
"""Share of E‖g‖² below which a covariance is rounding: the square of about a hundred times the rounding of float32."""


@dataclass(frozen=True, eq=False)
class Noise:
    """Noise of the rows g_k of K labels around their expectations μ_k, with covariances Σ_kl = Cov(g_k, g_l).

    Attributes:
        traces: tr Σ_kk = E‖g_k‖² − ‖μ_k‖² `[K]`, ≥ 0 up to the error of the estimate.
        noise_scales: B_simple = tr Σ_kk / ‖μ_k‖² `[K]`, in batches: the number of batches in whose average the squared
            norm of the signal equals that of the noise. 0 without noise; infinite if no signal is measurable.
        correlations: tr Σ_kl / √(tr Σ_kk tr Σ_ll) of rows of one batch `[K, K]`, about [−1, 1]; 0 without noise, NaN if
            no batch has such a pair. Tasks with the same inputs have correlated noise, so that their cosine in one
            batch overestimates (or underestimates) the agreement of their expectations.
        step_signal_fraction: ‖E ḡ‖² / E‖ḡ‖², a scalar, for the mean row ḡ of a batch: the direction of the plain step.
        step_noise_scale: tr Cov(ḡ) / ‖E ḡ‖², a scalar, in batches. It includes the correlation of noise.
    """

    traces: Estimate
    noise_scales: TransformedEstimate
    correlations: Estimate
    step_signal_fraction: Estimate
    step_noise_scale: TransformedEstimate


def noise(gramian: LabelledGramian) -> Noise:
    """Estimate the noise of rows, of single labels and of the mean of a batch.

    With B batches, ‖μ‖² and tr Σ are the unbiased estimates of McCandlish et al. for one and for B batches:

        ‖μ‖² ≈ (B ‖mean of all‖² − mean of ‖g‖²) / (B − 1),    tr Σ ≈ mean of ‖g‖² − ‖μ‖²

    The noise scale is a function of the signal fraction s = ‖μ‖² / E‖g‖², B_simple = 1/s − 1, and so is its interval.

    Args:
        gramian: of rows at the same parameters; batches are independent, rows of one batch need not be.

    Cost: O(rows²) time and memory.

    Source: McCandlish et al. 2018, "An empirical model of large-batch training", arXiv 1812.06162, equation 2.9 and
    appendix A.1. Deviations: 1. a U-statistic over all pairs of batches instead of two batch sizes, which is the same
    number for B batches of one size. 2. The unit is the measured batch instead of one example, because rows of
    meta-learning have no examples.

    >>> generator = torch.Generator().manual_seed(0)
    >>> rows = torch.tensor([3.0, 0, 0, 0]) + 6 * torch.randn(400, 1, 4, generator=generator)
    >>> found = noise(LabelledGramian.of_rows(rows)).noise_scales  # the true scale is 4 · 6² / 3² = 16
    >>> print(f"{float(found.value):.0f} ({float(found.low):.0f} to {float(found.high):.0f})")
    19 (13 to 32)
    """
    inner, energy, same = gramian.inner_products, gramian.mean_squares, gramian.same_batch(gramian.gramian)
    step = signal_fractions(_mean_rows(gramian))
    step_signal = Estimate(step.value[0], step.half_width[0])
    return Noise(
        traces=estimate(lambda u, e: e - squares(u), inner, energy),
        noise_scales=TransformedEstimate.of(signal_fractions(gramian), noise_scale),
        correlations=estimate(_correlations, inner, energy, same),
        step_signal_fraction=step_signal,
        step_noise_scale=TransformedEstimate.of(step_signal, noise_scale),
    )


def noise_scale(signal_fraction: Tensor) -> Tensor:
    """Return 1/s − 1 for signal fractions s: 0 for s ≥ 1 − `ROUNDING`, infinity for s ≤ 0."""
    found = torch.where(signal_fraction > 0, 1 / signal_fraction - 1, torch.inf)
    found = torch.where(signal_fraction >= 1 - ROUNDING, 0.0, found)
    return found.masked_fill(signal_fraction.isnan(), torch.nan)


def _correlations(inner: Tensor, energies: Tensor, same_batch: Tensor) -> Tensor:
    """Correlations `[..., K, K]` of noise; 0 if one of the labels has no noise beyond rounding."""
    covariances, traces = same_batch - inner, energies - squares(inner)
    without_noise = traces <= ROUNDING * energies
    deviations = torch.where(without_noise, 1.0, traces).sqrt()
    found = covariances / (deviations[..., :, None] * deviations[..., None, :])
    either = without_noise[..., :, None] | without_noise[..., None, :]
    return torch.where(either & found.isfinite(), 0.0, found)


def _mean_rows(gramian: LabelledGramian) -> LabelledGramian:
    """The Gramian of the mean row of each batch."""
    batches = gramian.count
    mean = torch.zeros(batches, len(gramian.batches), dtype=torch.float64)
    mean[gramian.batches, torch.arange(len(gramian.batches))] = 1.0
    mean /= mean.sum(1, keepdim=True)
    return LabelledGramian(
        mean @ gramian.gramian @ mean.T, torch.arange(batches), torch.zeros(batches, dtype=torch.int64), ("mean",)
    )

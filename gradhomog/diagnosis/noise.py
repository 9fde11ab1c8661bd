"""Noise of task gradients: its size relative to the signal, and its correlation between tasks of one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import Estimate, TransformedEstimate, jackknife
from gradhomog.diagnosis.expected_gradients import signal_fractions, squares
from gradhomog.diagnosis.labelled_gramian import LabelledGramian

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

    Raises:
        OptionError: there are fewer than three batches.

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
    (inner, inner_without), (energy, energy_without) = gramian.inner_products, gramian.mean_squares
    trace, trace_without = energy - squares(inner), energy_without - squares(inner_without)
    same, same_without = gramian.same_batch(gramian.gramian)
    step = signal_fractions(_mean_rows(gramian))
    step_signal = Estimate(step.value[0], step.half_width[0])
    return Noise(
        traces=jackknife(trace, trace_without),
        noise_scales=TransformedEstimate.of(signal_fractions(gramian), noise_scale),
        correlations=jackknife(
            _correlations(same - inner, trace, energy),
            _correlations(same_without - inner_without, trace_without, energy_without),
        ),
        step_signal_fraction=step_signal,
        step_noise_scale=TransformedEstimate.of(step_signal, noise_scale),
    )


def noise_scale(signal_fraction: Tensor) -> Tensor:
    """Return 1/s − 1 for signal fractions s: 0 for s ≥ 1 − `ROUNDING`, infinity for s ≤ 0."""
    found = torch.where(signal_fraction > 0, 1 / signal_fraction - 1, torch.inf)
    found = torch.where(signal_fraction >= 1 - ROUNDING, 0.0, found)
    return found.masked_fill(signal_fraction.isnan(), torch.nan)


def _correlations(covariances: Tensor, traces: Tensor, energies: Tensor) -> Tensor:
    """Correlations `[..., K, K]` of noise; 0 if one of the labels has no noise beyond rounding."""
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

"""Ratios of the norms of expected gradients, with intervals on a logarithmic scale."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import TransformedEstimate, jackknife
from gradhomog.diagnosis.labelled_gramian import LabelledGramian


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

"""Measures of agreement between task gradients, from a record with `norms [tasks]` and `cosines [tasks, tasks]`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.results.events import Record, numbers

# Norms of homogenized rows are computed from a float64 Gramian: a norm below the square root of its rounding error,
# 1.5e-8 of the largest norm, cannot be distinguished from zero.
_ZERO = 1e-7


def mean_cosine(record: Record) -> float:
    """Mean of the cosines of different tasks; NaN for a single task."""
    cosines = _matrix(record)
    pairs = cosines[~np.eye(len(cosines), dtype=bool)]
    pairs = pairs[np.isfinite(pairs)]  # cosines of zero rows are missing
    return float(pairs.mean()) if pairs.size else math.nan


def norm_ratio(record: Record) -> float:
    """Largest norm of a row divided by the smallest nonzero norm; NaN for a single task."""
    norms = [norm for norm in numbers(record["norms"]) if norm > 0 and math.isfinite(norm)]
    norms = [norm for norm in norms if norm > _ZERO * max(norms)]
    return max(norms) / min(norms) if len(norms) > 1 else math.nan


def relative_distance(record: Record) -> float:
    """Mean of d_ij = ‖g_i − g_j‖ over pairs of tasks, divided by the mean norm.

    NaN for a single task, or if all rows are zero. d_ij² = n_i² + n_j² − 2 n_i n_j cos_ij. A common factor of all rows
    does not change the result. It is 0 for equal rows, and √2 for orthogonal rows of equal norm. The distance of a row
    to a zero row is its norm.
    """
    norms = np.array(numbers(record["norms"]))
    if len(norms) < 2 or not np.isfinite(norms).all() or not norms.any():
        return math.nan
    norms = norms / norms.mean()
    products = np.outer(norms, norms)
    inner = np.where(products > 0, products * _matrix(record), 0)  # cosines of zero rows are missing
    squares = norms[:, None] ** 2 + norms[None, :] ** 2 - 2 * inner
    return float(np.sqrt(squares[np.triu_indices(len(norms), 1)].clip(0)).mean())


def _matrix(record: Record) -> NDArray[np.float64]:
    return np.array([numbers(row) for row in record["cosines"]])

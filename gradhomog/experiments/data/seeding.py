"""Generators of random numbers, one for each purpose."""

from __future__ import annotations

import numpy as np


def generator(*words: int) -> np.random.Generator:
    """A generator of its own: the words, numbers from 0 on, decide all that is drawn. Trailing zeros tell nothing."""
    # Named, as `default_rng` may become another generator one day.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))

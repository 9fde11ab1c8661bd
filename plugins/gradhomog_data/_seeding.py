"""Random number generators, one for each purpose."""

import numpy as np


def generator(*words: int) -> np.random.Generator:
    """Return a generator seeded by `words`, integers >= 0. Trailing zeros do not change the seed."""
    # PCG64 is explicit, because `default_rng` may use another generator in a later version of NumPy.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))

"""Random rows of many kinds, and helpers to measure violations of optimality conditions in extended precision."""

import numpy as np
import torch

# Rows of random norms, directions and dependence; the kind determines their common structure.
KINDS = ("free", "agreeing", "conflicting", "zero in the hull", "narrow cone", "two bundles", "whole numbers")


def rows(seed, tasks=None, spread=None):
    """Return 1 to 32 rows, float64 `[tasks, params]`, often with fewer dimensions than rows, norms over up to 10⁸.

    Some are zero, a duplicate, the opposite or a multiple of another, or a sum of two.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*size):
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    def choice(values):
        return values[int(torch.randint(len(values), (1,), generator=generator))]

    n = tasks or choice((1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32))
    params = choice((max(1, n // 3), n, n + 1, n + 30))
    found, kind = normal(n, params), choice(KINDS)
    if kind == "agreeing":
        found = found + 2 * normal(params)
    elif kind == "conflicting":
        found = found - 0.9 * found.mean(0)
    elif kind == "zero in the hull":
        found = found - found.mean(0)
    elif kind == "narrow cone":
        found = normal(params) + 10 ** (-3 * uniform(1)) * found
    elif kind == "two bundles":
        found = 10 ** (-2 * uniform(1)) * found + normal(params) * (2 * (uniform(n, 1) < 0.5) - 1)
    elif kind == "whole numbers":
        found = (2 * found).round()
    found = found * 10 ** ((choice((0, 1, 2, 4, 8)) if spread is None else spread) * (uniform(n, 1) - 0.5))
    for index in range(n):
        other, another = choice(range(n)), choice(range(n))
        if uniform(1) < 0.2:
            found[index] = choice((0.0, 1.0, -1.0, 3.0, -0.1)) * found[other] + choice((0.0, 0.0, 1.0)) * found[another]
    return found


def extended(*tensors):
    """Convert tensors to NumPy arrays of the longest floating type, so that residuals have negligible rounding."""
    return tuple(np.asarray(tensor.detach().numpy(), dtype=np.longdouble) for tensor in tensors)


def lengths(gramian):
    """Return the norms of the rows, and the same with 1 in place of zero, as divisors."""
    norms = np.sqrt(np.diag(gramian))
    return norms, np.where(norms > 0, norms, 1)


def rounding(terms):
    """Return an allowance for 32 rounding errors of a sum with these terms, relative to the caller's divisor."""
    return 32 * float(np.finfo(np.float64).eps) * float(terms)

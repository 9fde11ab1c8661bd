"""Detect memory that grows with every step."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable

from gradhomog.testing.check import CheckFailure
from gradhomog.testing.snapshots import tensor_bytes


def require_constant_memory(
    step: Callable[[], None], object_bytes: Callable[[], int], first: int, noise: float
) -> None:
    """Raise if the process's tensors or the object grow by more than `noise` bytes per step in both halves of a run.

    Sizes are read after `first`, 3 · `first` and 5 · `first` steps.
    """
    sizes = []
    gc.freeze()  # excludes the objects that exist now: a count takes 0.05 s instead of 0.5
    try:
        for count in (first, 2 * first, 2 * first):
            for _ in range(count):
                step()
            sizes.append((tensor_bytes(), object_bytes()))
    finally:
        gc.unfreeze()
    for name, series in zip(("the tensors of the process", "the object"), zip(*sizes, strict=True), strict=True):
        growth = min((after - before) / (2 * first) for before, after in itertools.pairwise(series))
        if growth > noise:
            raise CheckFailure(f"{name} grow{'s' * (name == 'the object')} by {growth:.0f} bytes with every step")

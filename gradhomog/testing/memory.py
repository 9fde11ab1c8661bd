"""The check that memory does not grow from step to step."""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
from collections import deque
from typing import Any

from gradhomog.testing.check_results import CheckFailure, check, full_or_fast
from gradhomog.testing.snapshots import tensor_bytes
from gradhomog.testing.subjects import STEPS


@check("homogenizers", "learners")
def memory_constant(subject: Any) -> None:
    """Over 200 steps, 20 of a learner, neither the tensors of the process nor the plugin grow.

    Sizes are read after a fifth, three fifths and all of the steps. Growth in both halves is a leak; a window that is
    filled once is not. The plugin's size is that of its pickle and of pickles of its classes' attributes, because a
    count of Python's allocations would include those of PyTorch's wrappers. A learner predicts after every four steps.
    """
    # Rounds of `STEPS` steps. A counter above 255 needs one more byte in a pickle; a learner may have several.
    rounds, noise = (1, 8.0) if subject.kind == "learners" else (full_or_fast(10, 2), 0.5)
    run, sizes = subject.begin(), []
    gc.freeze()  # excludes the objects that exist now: a count takes 0.05 s instead of 0.5
    try:
        for count in (rounds, 2 * rounds, 2 * rounds):
            for _ in range(count):
                subject.train(run)
            sizes.append((tensor_bytes(), _pickled_bytes(run)))
    finally:
        gc.unfreeze()
    for what, series in zip(
        ("the tensors of the process grow", "the object grows"), zip(*sizes, strict=True), strict=True
    ):
        growth = min((after - before) / (2 * rounds * STEPS) for before, after in itertools.pairwise(series))
        if growth > noise:
            raise CheckFailure(f"{what} by {growth:.0f} bytes with every step")


def _pickled_bytes(run: Any) -> int:
    """Return the size of a pipeline, or of a learner with its optimizer, and of containers in their classes."""
    owners = dict.fromkeys(owner for part in run for owner in type(part).__mro__)
    containers = (list, dict, set, deque)
    shared = [value for owner in owners for value in vars(owner).values() if isinstance(value, containers)]
    size = 0
    for value in (run, *shared):
        with contextlib.suppress(Exception):  # another check reports values that cannot be pickled
            size += len(pickle.dumps(value))
    return size

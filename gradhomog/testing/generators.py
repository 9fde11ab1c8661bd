"""The global random generators: whether they were moved, and a context in which they are where one wants them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def positions() -> dict[str, Any]:
    """Where the global generators of torch, numpy and Python are, to be compared by `==`."""
    key: Any
    name, key, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (name, key.tobytes(), *rest),
        "Python": random.getstate(),
    }


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the context the global generators begin at a seed; afterwards they are where they were before."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])

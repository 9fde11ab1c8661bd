"""What it costs: memory that must not grow, time that is told."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import statistics
import time
from collections import deque

import torch
from torch import Tensor

from gradhomog.pipelines import Pipeline
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.memory import tensor_bytes

LOOKS = (40, 120, 200)  # steps after which memory is read
NOISE = 0.5  # bytes per step: a counter that passes 255 is pickled in one byte more


@check("homogenizers")
def memory_constant(subject: HomogenizerSubject) -> None:
    """Over 200 steps neither the tensors of the process nor what the homogenizer holds become more.

    Read after 40, 120 and 200 steps; growth in both halves is a leak: a window that fills up once is none. What it
    holds is measured by its pickle, and those of its classes' attributes: counting Python's allocations would count
    those of PyTorch's wrappers too.
    """
    pipe, done, found = subject.pipeline(), 0, []
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = subject.arena.batch(tasks=2)
    for until in LOOKS:
        for _ in range(done, until):
            if subject.acts_before_rows:
                subject.lap(pipe, batch)
            else:
                subject.combine(rows, pipe=pipe)
        done = until
        found.append((tensor_bytes(), _held_bytes(pipe)))
    for what, sizes in zip(("the tensors of the process", "what it holds"), zip(*found, strict=True), strict=True):
        growth = [(after - before) / (LOOKS[1] - LOOKS[0]) for before, after in itertools.pairwise(sizes)]
        if min(growth) > NOISE:
            raise CheckFailure(f"{what}: {min(growth):.0f} bytes more with every step")


def _held_bytes(pipe: Pipeline) -> int:
    owners = {owner: None for homogenizer in pipe for owner in type(homogenizer).__mro__}
    shared = [
        value for owner in owners for value in vars(owner).values() if isinstance(value, (list, dict, set, deque))
    ]
    size = 0
    for value in (pipe, *shared):
        with contextlib.suppress(Exception):  # that it cannot be pickled is told by another check
            size += len(pickle.dumps(value))
    return size


@check("homogenizers")
def cost(subject: HomogenizerSubject) -> str:
    """What a step takes, as a ratio to the plain mean of the same rows, of 4 tasks and 100,000 parameters. Reported."""
    rows = torch.randn(4, 100_000, generator=torch.Generator().manual_seed(0))
    plain, ours = Pipeline(), subject.pipeline()
    shown = subject.shown(rows, ours)
    # Features of a network, not of 100,000 dimensions.
    features = torch.randn(4, 15, 64, generator=torch.Generator().manual_seed(1))
    taps = shown["features"]
    for name in ("features", "feature_cotangents"):
        shown[name] = features if isinstance(taps, Tensor) else [features] * len(taps)
    shown["targets"] = torch.arange(15).remainder(5).repeat(4, 1)

    def seconds(pipe: Pipeline) -> float:
        start = time.perf_counter()
        pipe.combine(rows, **(shown if pipe is ours else {}))
        return time.perf_counter() - start

    pairs = [(seconds(plain), seconds(ours)) for _ in range(12)][2:]  # the first turns warm up
    ratio = statistics.median(own / mean for mean, own in pairs)
    own = statistics.median(own for _, own in pairs)
    return f"a step takes × {ratio:.2g} of the plain mean ({1e3 * own:.2g} ms; 4 tasks, 100,000 parameters)"

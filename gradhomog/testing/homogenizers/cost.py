"""Checks of cost: memory that must not grow from step to step, and the time of a step, reported."""

from __future__ import annotations

import contextlib
import pickle
import statistics
import time
from collections import deque

import torch

from gradhomog.pipelines import Pipeline
from gradhomog.testing import small_network
from gradhomog.testing.checking import check, full_or_fast
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.memory_growth import require_constant


@check("homogenizers")
def memory_constant(subject: HomogenizerSubject) -> None:
    """Over 200 steps neither the tensors of the process nor the homogenizer grow.

    Read after 40, 120 and 200 steps; growth in both halves is a leak: a window that fills up once is none. The
    homogenizer is measured by its pickle, and those of its classes' attributes: counting Python's allocations would
    count those of PyTorch's wrappers too.
    """
    pipe = subject.pipeline()
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = small_network.batch(tasks=2)

    def step() -> None:
        if subject.acts_before_rows:
            subject.encoder_step(pipe, batch)
        else:
            subject.combine(rows, pipe=pipe)

    # 0.5 bytes per step: a counter that passes 255 is pickled in one byte more
    require_constant(step, lambda: _pickled_bytes(pipe), full_or_fast(40, 8), noise=0.5)


def _pickled_bytes(pipe: Pipeline) -> int:
    owners = {owner: None for homogenizer in pipe for owner in type(homogenizer).__mro__}
    shared = [
        value for owner in owners for value in vars(owner).values() if isinstance(value, (list, dict, set, deque))
    ]
    size = 0
    for value in (pipe, *shared):
        with contextlib.suppress(Exception):  # another check reports what cannot be pickled
            size += len(pickle.dumps(value))
    return size


@check("homogenizers")
def cost(subject: HomogenizerSubject) -> str:
    """The time of a step, as a ratio to the plain mean of the same rows: 4 tasks, 100,000 parameters. Reported."""
    rows = torch.randn(4, 100_000, generator=torch.Generator().manual_seed(0))
    plain, ours = Pipeline(), subject.pipeline()
    inputs = subject.step_inputs(rows)
    # Features of a network, not of 100,000 dimensions.
    inputs["features"] = inputs["feature_grads"] = subject.at_taps(
        torch.randn(4, 15, 64, generator=torch.Generator().manual_seed(1))
    )
    inputs["targets"] = torch.arange(15).remainder(5).repeat(4, 1)

    def seconds(pipe: Pipeline) -> float:
        start = time.perf_counter()
        pipe.combine(rows, **(inputs if pipe is ours else {}))
        return time.perf_counter() - start

    pairs = [(seconds(plain), seconds(ours)) for _ in range(12)][2:]  # the first turns warm up
    ratio = statistics.median(own / mean for mean, own in pairs)
    own = statistics.median(own for _, own in pairs)
    return f"a step takes × {ratio:.2g} of the plain mean ({1e3 * own:.2g} ms; 4 tasks, 100,000 parameters)"

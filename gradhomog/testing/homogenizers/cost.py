"""Checks of cost: memory must not grow from step to step; the time of a step is reported."""

from __future__ import annotations

import contextlib
import pickle
import statistics
import time
from collections import deque

import torch

from gradhomog.step.pipelines import Pipeline
from gradhomog.testing import small_network
from gradhomog.testing.check import check, full_or_fast
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.memory_growth import require_constant_memory


@check("homogenizers")
def memory_constant(subject: HomogenizerSubject) -> None:
    """Over 200 steps neither the tensors of the process nor the homogenizer grow.

    Sizes are read after 40, 120 and 200 steps. Growth in both halves is a leak; a window that is filled once is not.
    The homogenizer's size is that of its pickle and of pickles of its classes' attributes, because a count of Python's
    allocations would include those of PyTorch's wrappers.
    """
    pipe = subject.pipeline()
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = small_network.batch(tasks=2)

    def step() -> None:
        if subject.acts_before_rows:
            subject.encoder_step(pipe, batch)
        else:
            subject.combine(rows, pipe=pipe)

    # 0.5 bytes per step: a counter above 255 needs one more byte in a pickle
    require_constant_memory(step, lambda: _pickled_bytes(pipe), full_or_fast(40, 8), noise=0.5)


def _pickled_bytes(pipe: Pipeline) -> int:
    owners = {owner: None for homogenizer in pipe for owner in type(homogenizer).__mro__}
    shared = [
        value for owner in owners for value in vars(owner).values() if isinstance(value, (list, dict, set, deque))
    ]
    size = 0
    for value in (pipe, *shared):
        with contextlib.suppress(Exception):  # another check reports values that cannot be pickled
            size += len(pickle.dumps(value))
    return size


@check("homogenizers")
def cost(subject: HomogenizerSubject) -> str:
    """Reports the time of a step relative to the plain mean of the same rows: 4 tasks, 100,000 parameters."""
    rows = torch.randn(4, 100_000, generator=torch.Generator().manual_seed(0))
    plain, homogenized = Pipeline(), subject.pipeline()
    inputs = subject.step_inputs(rows)
    # Features of a typical size: those of `step_inputs` would have 100,000 dimensions.
    inputs["features"] = inputs["feature_grads"] = subject.at_taps(
        torch.randn(4, 15, 64, generator=torch.Generator().manual_seed(1))
    )
    inputs["targets"] = torch.arange(15).remainder(5).repeat(4, 1)

    def seconds(pipe: Pipeline) -> float:
        start = time.perf_counter()
        pipe.combine(rows, **(inputs if pipe is homogenized else {}))
        return time.perf_counter() - start

    pairs = [(seconds(plain), seconds(homogenized)) for _ in range(12)][2:]  # the first two are warm-up
    ratio = statistics.median(step / mean for mean, step in pairs)
    own = statistics.median(step for _, step in pairs)
    return f"a step takes {ratio:.2g} × the time of the plain mean ({1e3 * own:.2g} ms; 4 tasks, 100,000 parameters)"

"""Checks of cost: memory must not grow from step to step; the time of a step is reported."""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
import statistics
import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import TaskBatch
from gradhomog.step.pipelines import Pipeline
from gradhomog.testing import small_network
from gradhomog.testing.check_results import CheckFailure, check, full_or_fast
from gradhomog.testing.snapshots import tensor_bytes
from gradhomog.testing.subjects import HomogenizerSubject, LearnerSubject

SIDE, CHANNELS = 14, 16
Call = Callable[[], object]


@check("homogenizers", "learners")
def memory_constant(subject: HomogenizerSubject | LearnerSubject) -> None:
    """Over 200 steps, 25 of a learner, neither the tensors of the process nor the plugin grow.

    Sizes are read after a fifth, three fifths and all of the steps. Growth in both halves is a leak; a window that is
    filled once is not. The plugin's size is that of its pickle and of pickles of its classes' attributes, because a
    count of Python's allocations would include those of PyTorch's wrappers. A learner is evaluated after each step.
    """
    step: Call
    plugin: Learner | Pipeline
    if isinstance(subject, LearnerSubject):
        step, plugin = _step_and_evaluation(subject)
        first, noise = full_or_fast(5, 2), 8.0  # a growing counter may need more bytes in a pickle
    else:
        step, plugin = _repeated_step(subject)
        first, noise = full_or_fast(40, 8), 0.5  # a counter above 255 needs one more byte
    sizes = []
    gc.freeze()  # excludes the objects that exist now: a count takes 0.05 s instead of 0.5
    try:
        for count in (first, 2 * first, 2 * first):
            for _ in range(count):
                step()
            sizes.append((tensor_bytes(), _pickled_bytes(plugin)))
    finally:
        gc.unfreeze()
    for what, series in zip(
        ("the tensors of the process grow", "the object grows"), zip(*sizes, strict=True), strict=True
    ):
        growth = min((after - before) / (2 * first) for before, after in itertools.pairwise(series))
        if growth > noise:
            raise CheckFailure(f"{what} by {growth:.0f} bytes with every step")


def _step_and_evaluation(subject: LearnerSubject) -> tuple[Call, Learner]:
    learner, batch = subject.learner(), subject.batch(tasks=1)
    outer = torch.optim.Adam(learner.parameters(), lr=1e-3)
    return lambda: (learner.step(batch, outer), learner.evaluate(batch)), learner


def _repeated_step(subject: HomogenizerSubject) -> tuple[Call, Pipeline]:
    pipe, batch = subject.pipeline(), small_network.batch(tasks=2)
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if subject.acts_before_rows:
        return lambda: subject.encoder_step(pipe, batch), pipe
    return lambda: subject.combine(rows, pipe=pipe), pipe


def _pickled_bytes(plugin: Learner | Pipeline) -> int:
    """Return the size of a learner, or of a pipeline, and of the containers in its classes' attributes."""
    owners = {
        owner: None for one in (plugin if isinstance(plugin, Pipeline) else [plugin]) for owner in type(one).__mro__
    }
    containers = (list, dict, set, deque)
    shared = [value for owner in owners for value in vars(owner).values() if isinstance(value, containers)]
    size = 0
    for value in (plugin, *shared):
        with contextlib.suppress(Exception):  # another check reports values that cannot be pickled
            size += len(pickle.dumps(value))
    return size


@check("homogenizers", "learners")
def cost(subject: HomogenizerSubject | LearnerSubject) -> str:
    """Reports the time of a step relative to a plain one.

    A homogenizer is compared with the mean of the same rows, of 4 tasks and 100,000 parameters; a learner with one
    forward and backward pass over the same inputs, in float32.
    """
    timed = _learner_step(subject) if isinstance(subject, LearnerSubject) else _direction(subject)
    plain, step, reference, size = timed
    pairs = [(_seconds(plain), _seconds(step)) for _ in range(10)][2:]  # the first two are warm-up
    ratio = statistics.median(own / expected for expected, own in pairs)
    milliseconds = 1e3 * statistics.median(own for _, own in pairs)
    return f"a step takes {ratio:.2g} × the time of {reference} ({milliseconds:.2g} ms; {size})"


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _direction(subject: HomogenizerSubject) -> tuple[Call, Call, str, str]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 100_000, generator=generator)
    plain, homogenized = Pipeline(), subject.pipeline()
    # Features of a typical size: those of `step_inputs` would have 100,000 dimensions.
    features = subject.at_taps(torch.randn(4, 15, 64, generator=generator))
    targets = torch.arange(15).remainder(5).repeat(4, 1)
    inputs = {**subject.step_inputs(rows), "features": features, "feature_grads": features, "targets": targets}
    return (
        lambda: plain.combine(rows), lambda: homogenized.combine(rows, **inputs),
        "the plain mean", "4 tasks, 100,000 parameters",
    )  # fmt: skip


def _learner_step(subject: LearnerSubject) -> tuple[Call, Call, str, str]:
    small = subject.batch(tasks=4)
    batch = TaskBatch(
        _enlarge(small.support_x), _targets(small.support_y), _enlarge(small.query_x), _targets(small.query_y),
        small.domains,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        head = nn.Linear(CHANNELS * (SIDE // 4) ** 2, subject.targets or small_network.WAYS)
    learner = subject.make_for(encoder.float(), head.float())
    outer = torch.optim.SGD(learner.parameters(), lr=1e-4)

    def forward_and_backward() -> None:
        outer.zero_grad()
        for task in batch:
            for x, y in ((task.support_x, task.support_y), (task.query_x, task.query_y)):
                torch.autograd.backward(learner.loss(head(encoder(x)), y))
        outer.step()

    shots, queries = batch.support_x.shape[1], batch.query_x.shape[1]
    size = f"4 tasks of {shots} + {queries} images of {SIDE} px, {CHANNELS} channels"
    reference = "a forward and backward pass over its inputs"
    return forward_and_backward, lambda: learner.step(batch, outer), reference, size


def _enlarge(images: Tensor) -> Tensor:
    """Images interpolated to `[tasks, n, 1, 14, 14]`, float32."""
    large = nn.functional.interpolate(images.flatten(0, 1), SIDE, mode="bilinear")
    return large.reshape(*images.shape[:3], SIDE, SIDE).float()


def _targets(targets: Tensor) -> Tensor:
    return targets.float() if targets.is_floating_point() else targets

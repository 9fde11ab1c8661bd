"""Checks of cost: memory must not grow from step to step; the time of a step is reported."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from gradhomog.learners.tasks import TaskBatch
from gradhomog.testing.check import check, full_or_fast
from gradhomog.testing.learners.subject import LearnerSubject
from gradhomog.testing.memory_growth import require_constant_memory
from gradhomog.testing.small_network import WAYS

SIZE, CHANNELS = 14, 16


@check("learners")
def memory_constant(subject: LearnerSubject) -> None:
    """Over 25 steps neither the tensors of the process nor the learner grow.

    Each step is followed by an evaluation. Sizes are read after 5, 15 and 25 steps; growth in both halves is a leak.
    The learner's size is that of its pickle.
    """
    learner, batch = subject.learner(), subject.batch(tasks=1)
    outer = torch.optim.Adam(learner.parameters(), lr=1e-3)

    def step() -> None:
        learner.step(batch, outer)
        learner.evaluate(batch)

    # 8 bytes per step: a growing counter may need more bytes in a pickle
    require_constant_memory(step, lambda: len(pickle.dumps(learner)), full_or_fast(5, 2), noise=8)


@check("learners")
def cost(subject: LearnerSubject) -> str:
    """Reports the time of a step relative to one forward and backward pass over the same inputs, in float32."""
    stacked = subject.batch(tasks=4)
    batch = TaskBatch(
        _enlarge(stacked.support_x), _targets(stacked.support_y), _enlarge(stacked.query_x),
        _targets(stacked.query_y), stacked.domains,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        head = nn.Linear(CHANNELS * (SIZE // 4) ** 2, subject.targets or WAYS)
    learner = subject.make(encoder.float(), head.float())
    outer = torch.optim.SGD(learner.parameters(), lr=1e-4)

    def forward_and_backward() -> None:
        outer.zero_grad()
        for task in batch:
            for x, y in ((task.support_x, task.support_y), (task.query_x, task.query_y)):
                torch.autograd.backward(learner.loss(head(encoder(x)), y))
        outer.step()

    def timed_pair() -> tuple[float, float]:
        return _seconds(forward_and_backward), _seconds(lambda: learner.step(batch, outer))

    pairs = [timed_pair() for _ in range(8)][2:]  # the first two are warm-up
    ratio = statistics.median(step / passes for passes, step in pairs)
    own = statistics.median(step for _, step in pairs)
    return (
        f"a step takes {ratio:.2g} × the time of a forward and backward pass over its inputs ({1e3 * own:.2g} ms; "
        f"4 tasks of {batch.support_x.shape[1]} + {batch.query_x.shape[1]} images of {SIZE} px, {CHANNELS} channels)"
    )


def _enlarge(images: torch.Tensor) -> torch.Tensor:
    """Images interpolated to `[tasks, n, 1, 14, 14]`, float32."""
    large = nn.functional.interpolate(images.flatten(0, 1), SIZE, mode="bilinear")
    return large.reshape(*images.shape[:3], SIZE, SIZE).float()


def _targets(targets: torch.Tensor) -> torch.Tensor:
    return targets.float() if targets.is_floating_point() else targets


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start

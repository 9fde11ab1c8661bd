"""Checks of cost: memory that must not grow from step to step, and the time of a step, reported."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from gradhomog.tasks import TaskBatch
from gradhomog.testing.checking import check, full_or_fast
from gradhomog.testing.learners.subject import LearnerSubject
from gradhomog.testing.memory_growth import require_constant
from gradhomog.testing.small_network import WAYS

SIZE, CHANNELS = 14, 16


@check("learners")
def memory_constant(subject: LearnerSubject) -> None:
    """Over 25 steps neither the tensors of the process nor the learner grow.

    Read after 5, 15 and 25 steps, each followed by an evaluation; growth in both halves is a leak. The learner is
    measured by its pickle.
    """
    made, batch = subject.learner(), subject.batch(tasks=1)
    outer = torch.optim.Adam(made.parameters(), lr=1e-3)

    def step() -> None:
        made.step(batch, outer)
        made.evaluate(batch)

    # 8 bytes per step: counters that come to need one byte more in a pickle
    require_constant(step, lambda: len(pickle.dumps(made)), full_or_fast(5, 2), noise=8)


@check("learners")
def cost(subject: LearnerSubject) -> str:
    """The time of a step, as a ratio to one forward and backward pass over the same inputs, in float32. Reported."""
    stacked = subject.batch(tasks=4)
    batch = TaskBatch(
        _enlarged(stacked.support_x), _targets(stacked.support_y), _enlarged(stacked.query_x),
        _targets(stacked.query_y), stacked.domains,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        head = nn.Linear(CHANNELS * (SIZE // 4) ** 2, subject.targets or WAYS)
    made = subject.make(encoder.float(), head.float())
    outer = torch.optim.SGD(made.parameters(), lr=1e-4)

    def plain() -> None:
        outer.zero_grad()
        for task in batch:
            for x, y in ((task.support_x, task.support_y), (task.query_x, task.query_y)):
                torch.autograd.backward(made.loss(head(encoder(x)), y))
        outer.step()

    pairs = [(_seconds(plain), _seconds(lambda: made.step(batch, outer))) for _ in range(8)][2:]  # the first warm up
    ratio = statistics.median(own / passes for passes, own in pairs)
    own = statistics.median(own for _, own in pairs)
    return (
        f"a step takes × {ratio:.2g} of a forward and backward pass over its inputs ({1e3 * own:.2g} ms; 4 tasks of "
        f"{batch.support_x.shape[1]} + {batch.query_x.shape[1]} images of {SIZE} px, {CHANNELS} channels)"
    )


def _enlarged(images: torch.Tensor) -> torch.Tensor:
    """`[tasks, n, 1, 14, 14]`, float32."""
    large = nn.functional.interpolate(images.flatten(0, 1), SIZE, mode="bilinear")
    return large.reshape(*images.shape[:3], SIZE, SIZE).float()


def _targets(targets: torch.Tensor) -> torch.Tensor:
    return targets.float() if targets.is_floating_point() else targets


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start

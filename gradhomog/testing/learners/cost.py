"""What it costs: memory that must not grow, time that is told."""

from __future__ import annotations

import itertools
import pickle
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from gradhomog.tasks import TaskBatch
from gradhomog.testing.arena import WAYS
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.learners.subject import TARGETS, LearnerSubject
from gradhomog.testing.memory import tensor_bytes

LOOKS = (10, 20, 30)  # steps after which memory is read
NOISE = 8  # bytes per step: counters that come to need one byte more in a pickle
SIZE, CHANNELS = 14, 16


@check("learners")
def memory_constant(subject: LearnerSubject) -> None:
    """Over 30 steps neither the tensors of the process nor what the learner holds become more.

    Read after 10, 20 and 30 steps, each followed by an evaluation; growth in both halves is a leak. What it holds is
    measured by its pickle.
    """
    made, batch = subject.learner(), subject.batch(tasks=1)
    outer, done, found = torch.optim.Adam(made.parameters(), lr=1e-3), 0, []
    for until in LOOKS:
        while done < until:
            made.step(batch, outer)
            made.evaluate(batch)
            done += 1
        found.append((tensor_bytes(), len(pickle.dumps(made))))
    for what, sizes in zip(("the tensors of the process", "what it holds"), zip(*found, strict=True), strict=True):
        growth = [(after - before) / (LOOKS[1] - LOOKS[0]) for before, after in itertools.pairwise(sizes)]
        if min(growth) > NOISE:
            raise CheckFailure(f"{what} grow by {min(growth):.0f} bytes with every step")


@check("learners")
def cost(subject: LearnerSubject) -> str:
    """What a step takes, as a ratio to one forward and backward pass over the same inputs, in float32. Reported."""
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
        head = nn.Linear(CHANNELS * (SIZE // 4) ** 2, TARGETS[subject.served] or WAYS)
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

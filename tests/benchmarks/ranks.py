"""Benchmark of one data-parallel step with several losses on two processes: rows exchanged, beside plain averages."""

import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradhomog
from gradhomog import Ranks
from gradhomog.experiments.profiling.harness import Comparison
from tests.benchmarks import backward
from tests.benchmarks.backward import Batch, Setting, Step, by_hand, homogenized
from tests.benchmarks.benchmark import Benchmark

RANKS = 2
PLAIN, ALONE = "DistributedDataParallel", "by hand, nothing sent"
SHAPES = (*((tasks, 64, 1000) for tasks in (2, 4, 8)), *((tasks, 3, 32, 32) for tasks in (2, 4)))
EXPRESSIONS = ("none", "pcgrad", "upgrad")
RANKS_OPTIONS = {"batch": Ranks("batch"), "local": Ranks(local=True)}


def steps(texts: Sequence[str], setting: Setting) -> dict[str, Callable[[Batch], None]]:
    """The steps of one rank by label; each writes `.grad`, and has a network of its own."""
    wrapped = DistributedDataParallel(setting.network())

    def plain(batch: Batch) -> None:
        wrapped.zero_grad()
        wrapped(batch).backward()

    found = {PLAIN: plain, ALONE: Step(by_hand, setting.network())}
    for text in texts:
        for label, ranks in RANKS_OPTIONS.items():
            found[f"{text}, {label}"] = Step(homogenized(gradhomog.pipeline(text), group=ranks), setting.network())
    return found


_own: dict[str, Any] = {}
"""In a process of the group, its rank, setting, steps by label, and batch."""


def _start(rank: int, store: str, shape: Sequence[int], texts: Sequence[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    setting = backward.BENCHMARK.inputs(shape)
    _own.update(rank=rank, setting=setting, steps=steps(texts, setting))


def _act(request: int | str) -> None:
    """In a process of the group, create the batch of a round (a number), or take a step (a label)."""
    if isinstance(request, int):
        _own["batch"] = _own["setting"].batch(RANKS * request + _own["rank"])
    else:
        _own["steps"][request](_own["batch"])


def compare(texts: Sequence[str], shape: Sequence[int]) -> Comparison:
    texts = texts or EXPRESSIONS
    for text in texts:
        gradhomog.pipeline(text)  # raises for an invalid expression, before processes start
    store, context = str(Path(tempfile.mkdtemp()) / "store"), multiprocessing.get_context("spawn")
    # The processes act at the same time; each is started at its first request.
    processes = [ProcessPoolExecutor(1, context, _start, (rank, store, shape, texts)) for rank in range(RANKS)]

    def act(request: int | str) -> None:
        for future in [process.submit(_act, request) for process in processes]:
            future.result()

    labels = [PLAIN, ALONE, *(f"{text}, {label}" for text in texts for label in RANKS_OPTIONS)]
    return Comparison(
        f"one step on {RANKS} ranks: {backward.BENCHMARK.inputs(shape).title} per rank",
        {label: lambda batch, label=label: act(label) for label in labels}, act, PLAIN,
        (
            "A step: forward, one loss per linear head, gradients of all ranks into .grad; no optimizer.",
            f"{PLAIN}: one backward pass of the mean loss. {ALONE}: one backward pass per loss on each rank.",
            'batch: Ranks("batch"), rows are exchanged. local: Ranks(local=True), directions are averaged.',
            f"{RANKS} processes with one thread each, connected by gloo on the loopback interface.",
        ),
        with_memory=False,
    )  # fmt: skip


# Each process creates its own network and batches, from the shape.
BENCHMARK = Benchmark("ranks", dict.fromkeys(backward.FORMS, lambda *shape: shape), SHAPES, compare)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(__doc__))

"""Benchmark of one data-parallel step with several losses on two processes: rows exchanged, beside plain averages."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradhomog
from gradhomog import Ranks
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE
from tests.benchmarks.backward_inputs import FORMS, Batch, Network, Setting
from tests.benchmarks.backward_peers import by_hand
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main

RANKS = 2
PLAIN, ALONE = "DistributedDataParallel", "by hand, nothing sent"
SHAPES = (*((tasks, 64, 1000) for tasks in (2, 4, 8)), *((tasks, 3, 32, 32) for tasks in (2, 4)))
EXPRESSIONS = ("none", "pcgrad", "upgrad")

Step = Callable[[Batch], None]


class WithLosses(nn.Module):
    """A network whose forward pass returns the mean of its losses, as DistributedDataParallel requires."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Batch) -> Tensor:
        return torch.stack(self.network.losses(self.network.encoder(batch.inputs), batch)).mean()


def steps(texts: Sequence[str], setting: Setting) -> dict[str, Step]:
    """The steps of one rank by label; each writes `.grad`, and has a network of its own."""
    wrapped, alone = DistributedDataParallel(WithLosses(setting.network())), setting.network()

    def plain(batch: Batch) -> None:
        wrapped.zero_grad()
        wrapped(batch).backward()

    def not_sent(batch: Batch) -> None:
        alone.zero_grad()
        features = alone.encoder(batch.inputs)
        by_hand(alone.losses(features, batch), features, alone.encoder)

    found: dict[str, Step] = {PLAIN: plain, ALONE: not_sent}
    for text in texts:
        for label, ranks in (("batch", Ranks("batch")), ("local", Ranks(local=True))):
            found[f"{text}, {label}"] = partial(exchanged, setting.network(), gradhomog.pipeline(text), ranks)
    return found


def exchanged(network: Network, pipe: gradhomog.Pipeline, ranks: Ranks, batch: Batch) -> None:
    """Write the homogenized gradients of all ranks."""
    network.zero_grad()
    losses = network.losses(network.encoder(batch.inputs), batch)
    gradhomog.backward(losses, pipe, parameters=network.encoder, group=ranks)


def serve(connection: Connection, rank: int, store: str, shape: Sequence[int], texts: Sequence[str]) -> None:
    """Take the steps that the other end of the connection requests, as one rank, until it is closed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    setting = Setting(shape)
    own, batch = steps(texts, setting), setting.batch(0)
    while True:
        try:
            request: int | str = connection.recv()
        except EOFError:
            dist.destroy_process_group()
            return
        if isinstance(request, int):
            batch = setting.batch(RANKS * request + rank)
        else:
            own[request](batch)
        connection.send("done")


class Processes:
    """Processes that take a step at the same time; started at the first request."""

    def __init__(self, shape: Sequence[int], texts: Sequence[str]) -> None:
        self._shape, self._texts = tuple(shape), tuple(texts)
        self._connections: list[Any] = []

    def request(self, what: int | str) -> int | str:
        """Create the batches of a round (a number), or take a step (a label), and wait for all ranks."""
        if not self._connections:
            self._start()
        for connection in self._connections:
            connection.send(what)
        for connection in self._connections:
            connection.recv()
        return what

    def step(self, label: str, number: int) -> None:
        """Take a step on the batches of round `number`, which were created before."""
        self.request(label)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        store = str(Path(tempfile.mkdtemp()) / "store")
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, store, self._shape, self._texts)
            context.Process(target=serve, args=arguments, daemon=True).start()
            theirs.close()
            self._connections.append(ours)


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All steps on networks and batches of `shape`, one of `FORMS`."""
    texts = texts or EXPRESSIONS
    for text in texts:
        gradhomog.pipeline(text)  # raises for an invalid expression, before processes start
    processes = Processes(shape, texts)
    labels = [PLAIN, ALONE, *(f"{text}, {label}" for text in texts for label in ("batch", "local"))]
    return Case(
        {label: partial(processes.step, label) for label in labels},
        processes.request,
        (PLAIN,),
        f"one step on {RANKS} ranks: {Setting(shape).title} per rank",
        (
            "A step: forward, one loss per linear head, gradients of all ranks into .grad; no optimizer.",
            f"{PLAIN}: one backward pass of the mean loss. {ALONE}: one backward pass per loss on each rank.",
            'batch: Ranks("batch"), rows are exchanged. local: Ranks(local=True), directions are averaged.',
            f"{RANKS} processes with one thread each, connected by gloo on the loopback interface.",
            "All took steps in turn on the same batches; the first round is a warm-up.",
            INTERVAL_NOTE,
        ),
        min_rounds=2,
        shared_budget=True,
        paired=True,
        with_memory=False,
    )


BENCHMARK = Benchmark("ranks", "homogenizer", FORMS, SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))

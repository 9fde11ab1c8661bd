"""Benchmark of self-information drop-out on one convolution: homogenizers, the published form, and `unfold`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import TaskKey
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Workload
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main
from tests.benchmarks.self_information_peers import concatenated_differences, drop, unfolded_patches

SHAPES = ((75, 64, 42, 42),)
"""The second convolution of conv4 at 84 px, on the queries of a 5-way episode with 15 queries."""

EXPRESSIONS = ("isi(layers=1)", "isi(layers=1, neighbours=9)")
RADIUS = 3
FILTERS = 64
CONVOLUTION, PUBLISHED, UNFOLD = "convolution", "published form", "unfold form"


class Attached:
    """The convolution in an encoder that a pipeline is attached to; each call draws new masks."""

    def __init__(self, text: str, convolution: nn.Module) -> None:
        self.pipe = gradhomog.pipeline(text)
        self.encoder = nn.Sequential(convolution).train()

    def __call__(self, x: Tensor) -> Tensor:
        with self.pipe.attached(self.encoder):
            self.pipe.begin(TaskKey(0, "domain"), "query")
            outputs: Tensor = self.encoder(x)
        return outputs


class Peer:
    """The convolution, then kernel sums computed by a peer and a Bernoulli mask: the same operation as `Attached`."""

    def __init__(self, sums: Callable[[Tensor, int, int, int], Tensor], convolution: nn.Module) -> None:
        self.sums, self.convolution = sums, convolution
        self.random = torch.Generator().manual_seed(0)

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            sums = self.sums(x, RADIUS, 3, 1)
        return drop(self.convolution(x), sums, 0.1, 0.5, self.random)


def workloads(texts: Sequence[str], shape: Sequence[int]) -> dict[str, Workload]:
    """The workloads by label."""
    convolution = nn.Conv2d(shape[1], FILTERS, 3, padding=1)
    return {
        CONVOLUTION: convolution,
        **{text: Attached(text, convolution) for text in texts},
        PUBLISHED: Peer(concatenated_differences, convolution),
        UNFOLD: Peer(unfolded_patches, convolution),
    }


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All workloads on inputs of `shape`, images x channels x height x width."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return Case(
        workloads(texts or EXPRESSIONS, shape),
        lambda number: x,
        (CONVOLUTION, PUBLISHED, UNFOLD),
        f"self-information on inputs {'x'.join(map(str, shape))}",
        (
            f"{CONVOLUTION}: forward pass of a 3×3 convolution with {FILTERS} filters. Others: the same with a map of "
            f"self-information (for the peers, from {(2 * RADIUS + 1) ** 2} neighbours) and a new mask.",
            "to …: median over rounds of its time / median time of the other.",
            INTERVAL_NOTE,
            "All have an equal share of the time, so slow ones have fewer rounds. The first round is a warm-up unless "
            "it is the only round.",
            f"{MEMORY_NOTE}; for others than {CONVOLUTION}, the difference.",
        ),
    )


BENCHMARK = Benchmark("self_information", "homogenizer", ("images x channels x height x width",), SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))

"""Self-information drop-out on one convolution, beside the published form and a form with `unfold`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import TaskKey
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Work
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
    """The convolution within an encoder that a pipeline is attached to; every call draws new masks."""

    def __init__(self, text: str, convolution: nn.Module) -> None:
        self.pipe = gradhomog.pipeline(text)
        self.encoder = nn.Sequential(convolution).train()

    def __call__(self, x: Tensor) -> Tensor:
        with self.pipe.attached(self.encoder):
            self.pipe.begin(TaskKey(0, "domain"), "query")
            found: Tensor = self.encoder(x)
        return found


class Peer:
    """The convolution, then a peer's form of the kernel sums and a Bernoulli mask: the same operation as ours."""

    def __init__(self, sums: Callable[[Tensor, int, int, int], Tensor], convolution: nn.Module) -> None:
        self.sums, self.convolution = sums, convolution
        self.random = torch.Generator().manual_seed(0)

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            sums = self.sums(x, RADIUS, 3, 1)
        return drop(self.convolution(x), sums, 0.1, 0.5, self.random)


def works(texts: Sequence[str], shape: Sequence[int]) -> dict[str, Work]:
    """The works by label."""
    convolution = nn.Conv2d(shape[1], FILTERS, 3, padding=1)
    return {
        CONVOLUTION: convolution,
        **{text: Attached(text, convolution) for text in texts},
        PUBLISHED: Peer(concatenated_differences, convolution),
        UNFOLD: Peer(unfolded_patches, convolution),
    }


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All works on inputs of `shape`, images x channels x height x width."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return Case(
        works(texts or EXPRESSIONS, shape),
        lambda number: x,
        (CONVOLUTION, PUBLISHED, UNFOLD),
        f"self-information on inputs {'x'.join(map(str, shape))}",
        (
            f"Forward pass of a 3×3 convolution with {FILTERS} filters; for the others with the map of "
            f"self-information (for the peers: from {(2 * RADIUS + 1) ** 2} neighbours) and a new mask.",
            "to …: median over rounds of its time / median of the other's.",
            INTERVAL_NOTE,
            "Each has an equal share of the time, so slow ones have fewer rounds. The first round counts only if it is "
            "the only one.",
            f"{MEMORY_NOTE}; others than {CONVOLUTION}: the difference.",
        ),
    )


BENCHMARK = Benchmark("self_information", "homogenizer", ("images x channels x height x width",), SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))

"""Benchmark of self-information drop-out on one convolution: homogenizers, and the published form.

The peer computes, for each position p of a convolution's output, the kernel sum
S(p) = Σ_δ exp(−‖patch(p) − patch(p + δ)‖² / 2h²m) over all shifts δ in [−radius, radius]², with the mean squared
distance m over the batch and h = 1.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradhomog
from gradhomog import TaskKey
from gradhomog.experiments.profiling.harness import Comparison
from tests.benchmarks.benchmark import Benchmark

SHAPES = ((75, 64, 42, 42),)
"""The second convolution of conv4 at 84 px, on the queries of a 5-way episode with 15 queries."""

EXPRESSIONS = ("isi(layers=1)", "isi(layers=1, neighbours=9)")
RADIUS, FILTERS = 3, 64
CONVOLUTION, PUBLISHED = "convolution", "published form"


def images(*shape: int) -> Tensor:
    """Random activations, the same in all rounds."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Attached:
    """The convolution in an encoder that a pipeline is attached to; each call draws its masks."""

    def __init__(self, text: str, convolution: nn.Module) -> None:
        self.pipe = gradhomog.pipeline(text)
        self.encoder = nn.Sequential(convolution).train()

    def __call__(self, x: Tensor) -> Tensor:
        with self.pipe.attached(self.encoder):
            self.pipe.begin(TaskKey(0, "domain"), "query")
            return self.encoder(x)


def concatenated_differences(x: Tensor, radius: int, kernel: int, padding: int) -> Tensor:
    """S, `[n, height, width]`, in the form of the code published with InfoDrop (Shi et al. 2020, few_shot/backbone.py).

    The differences between the padded input `[n, channels, height, width]` and each of its shifts are concatenated,
    squared, and summed over channels; then follow a convolution with ones (sum over the patch), exp, and the sum over
    shifts.

    Deviations from that code: 1. all shifts are used instead of nine random shifts; 2. differences are squared in place
    and intermediate tensors freed instead of keeping three copies, so this form needs less memory.
    """
    center, *shifted = _shifts(x, radius, padding)
    differences = torch.cat([center - other for other in shifted], dim=1)
    shape = (len(x), len(shifted), *center.shape[-2:])
    squares = differences.square_().view(-1, *center.shape[1:]).sum(dim=1).view(shape)
    del differences
    distances = functional.conv2d(squares, x.new_ones(len(shifted), 1, kernel, kernel), groups=len(shifted))
    return torch.exp(-distances / distances.mean() / 2).sum(dim=1)


def _shifts(x: Tensor, radius: int, padding: int) -> list[Tensor]:
    """The input padded for patches, and all of its shifts (views of the zero-padded input)."""
    height, width = (size + 2 * padding for size in x.shape[-2:])
    padded = functional.pad(x, (radius + padding,) * 4)
    shifts = [(radius, radius), *itertools.product(range(2 * radius + 1), repeat=2)]
    return [padded[:, :, i : i + height, j : j + width] for i, j in shifts]


def drop(outputs: Tensor, sums: Tensor, rate: float, temperature: float, random: torch.Generator) -> Tensor:
    """Outputs `[n, channels, height, width]`, dropped (set to 0) independently per position and channel.

    The drop probability is 1 − (1 − rate)^(positions · p), with the softmax p over positions of (log S) / temperature.
    """
    share = (sums.log() / temperature).flatten(1).softmax(dim=1).view_as(sums)
    probability = 1 - (1 - rate) ** (share * sums[0].numel())
    return outputs * (torch.rand(outputs.shape, generator=random) >= probability[:, None])


def published(convolution: nn.Module) -> Callable[[Tensor], Tensor]:
    """The convolution, then kernel sums and a Bernoulli mask: the same operation as `Attached`."""
    random = torch.Generator().manual_seed(0)

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            found = concatenated_differences(x, RADIUS, 3, 1)
        return drop(convolution(x), found, 0.1, 0.5, random)

    return call


def compare(texts: Sequence[str], x: Tensor) -> Comparison:
    convolution = nn.Conv2d(x.shape[1], FILTERS, 3, padding=1)
    return Comparison(
        f"self-information on inputs {'x'.join(map(str, x.shape))}",
        {
            CONVOLUTION: convolution,
            **{text: Attached(text, convolution) for text in texts or EXPRESSIONS},
            PUBLISHED: published(convolution),
        },
        lambda number: x, (CONVOLUTION, PUBLISHED),
        (
            f"{CONVOLUTION}: forward pass of a 3×3 convolution with {FILTERS} filters. Others: the same with a map of "
            f"self-information (for the peer, from {(2 * RADIUS + 1) ** 2} neighbours) and a new mask.",
        ),
        shared_budget=False,
    )  # fmt: skip


BENCHMARK = Benchmark("self_information", {"images x channels x height x width": images}, SHAPES, compare)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(__doc__))

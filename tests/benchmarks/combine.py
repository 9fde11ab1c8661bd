"""Benchmark of one step on a Jacobian: homogenizers, aggregators of TorchJD, and the minimal operations of a step."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

import gradhomog
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Workload
from gradhomog.registry import expression
from gradhomog.rows import arithmetic
from tests.benchmarks import combine_peers
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.combine_inputs import Gradients, Source
from tests.benchmarks.command import main

SHAPES = tuple((tasks, params) for params in (100_000, 1_000_000) for tasks in (2, 4, 8, 16))
"""10⁷ parameters require `--shape`: with 16 tasks the inputs take 1.3 GB, and some peers twice that in addition."""

EXPRESSIONS = (
    "none", "pcgrad", "gradvac", "mgda", "upgrad", "dualproj", "cagrad", "imtl_g", "nash_mtl", "fairgrad",
    "aligned_mtl", "config", "graddrop", "gradnorm",
)  # fmt: skip

FLOOR, SECOND_FLOOR, READ, PLAIN = "floor", "floor again", "weights @ J", "J @ J.T, weights @ J"
NORMS, NORMS_READ = "norms", "norms, weights @ J"


class Step:
    """One complete step of a pipeline."""

    def __init__(self, text: str) -> None:
        self.pipe = gradhomog.pipeline(text)

    def __call__(self, given: Gradients) -> Tensor:
        direction = self.pipe.combine(given.rows, losses=given.losses)
        assert isinstance(direction, Tensor)
        return direction


class MinimalStep:
    """The minimal operations of a step: a statistic of the rows, and their weighted mean with fixed weights."""

    def __init__(self, tasks: int) -> None:
        self.weights = torch.full((tasks,), 1 / tasks)

    def floor(self, given: Gradients) -> tuple[Tensor, Tensor]:
        return arithmetic.gramian(given.rows), self.read(given)

    def plain(self, given: Gradients) -> tuple[Tensor, Tensor]:
        return given.rows @ given.rows.T, self.read(given)

    def read(self, given: Gradients) -> Tensor:
        return self.weights @ given.rows

    def norms(self, given: Gradients) -> Tensor:
        return arithmetic.squared_norms(given.rows)

    def norms_read(self, given: Gradients) -> tuple[Tensor, Tensor]:
        return self.norms(given), self.read(given)


def workloads(texts: Sequence[str], tasks: int) -> tuple[dict[str, Workload], dict[str, str]]:
    """The workloads by label, and the label of the peer of each workload that has a peer.

    Raises:
        GradhomogError: an expression of `texts` is invalid.
    """
    minimal = MinimalStep(tasks)
    # Other workloads are between the two floors, so that neither benefits from the processor's cache.
    found: dict[str, Workload] = {
        FLOOR: minimal.floor, PLAIN: minimal.plain, READ: minimal.read, SECOND_FLOOR: minimal.floor,
    }  # fmt: skip
    peers: dict[str, str] = {}
    for text in texts or EXPRESSIONS:
        found[text] = Step(text)
        name = only_member(text)
        if name == "gradnorm":
            found.update({NORMS: minimal.norms, NORMS_READ: minimal.norms_read})
            peers[text] = NORMS_READ
        elif name in combine_peers.NAMES:
            peers[text] = f"torchjd {combine_peers.NAMES[name]}"
            found.setdefault(peers[text], combine_peers.peer(combine_peers.NAMES[name], tasks))
    return found, peers


def only_member(text: str) -> str:
    """The name of the homogenizer of an expression; `none` for an empty pipeline, an empty string for several."""
    members = expression.parse(text)
    return "none" if not members else members[0][0] if len(members) == 1 else ""


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All workloads on gradients of `shape`, tasks x params."""
    tasks, params = shape
    made, peers = workloads(texts, tasks)
    return Case(
        made,
        Source(tasks, params),
        (FLOOR,),
        f"one step on J, the gradients of {tasks} task{'s' if tasks > 1 else ''} by {params:,} parameters",
        (
            f"{FLOOR}: the fastest known computation of the Gramian of J, and weights @ J with fixed weights.",
            f"{SECOND_FLOOR}: the same operations; the distance of its ratio from × 1.00 is the measurement error.",
            f"to {FLOOR}, over {FLOOR}: median over rounds of the ratio and of the difference in the same round.",
            f"to peer: ratio to the aggregator of TorchJD (for gradnorm, to {NORMS_READ}), in rounds that have both.",
            INTERVAL_NOTE,
            "All have an equal share of the time, so slow ones have fewer rounds. Each round has another J; the first "
            "round is a warm-up.",
            f"{MEMORY_NOTE}; {FLOOR} needs one gradient; for others, the difference.",
        ),
        min_rounds=2,  # the first step of some homogenizers allocates state
        paired=True,
        difference=True,
        peers=peers,
    )


BENCHMARK = Benchmark("combine", "homogenizer", ("tasks x params",), SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))

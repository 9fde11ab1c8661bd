"""One step on a matrix of gradients: homogenizers by name, beside TorchJD's and the least work that a step needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

import gradhomog
from gradhomog import expression
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Work
from gradhomog.jacobian import arithmetic
from tests.benchmarks import combine_peers
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.combine_inputs import Gradients, Source
from tests.benchmarks.command import main

SHAPES = tuple((tasks, params) for params in (100_000, 1_000_000) for tasks in (2, 4, 8, 16))
"""10⁷ parameters are left to `--shape`: with 16 tasks the inputs take 1.3 GB, and some peers twice that again."""

EXPRESSIONS = (
    "none", "pcgrad", "gradvac", "mgda", "upgrad", "dualproj", "cagrad", "imtl_g", "nash_mtl", "fairgrad",
    "aligned_mtl", "config", "graddrop", "gradnorm",
)  # fmt: skip

FLOOR, AGAIN, READ, PLAIN = "floor", "floor again", "weights @ J", "J @ J.T, weights @ J"
NORMS, NORMS_READ = "norms", "norms, weights @ J"


class Step:
    """One whole step of a pipeline."""

    def __init__(self, text: str) -> None:
        self.pipe = gradhomog.pipeline(text)

    def __call__(self, given: Gradients) -> Tensor:
        direction = self.pipe.combine(given.rows, losses=given.losses)
        assert isinstance(direction, Tensor)
        return direction


class Least:
    """The least work of a step: a statistic of the rows, and one weighted mean of them with fixed weights."""

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


def works(texts: Sequence[str], tasks: int) -> tuple[dict[str, Work], dict[str, str]]:
    """The works by label, and for each that has a peer the label of that.

    Raises:
        GradhomogError: one of `texts` names nothing.
    """
    least = Least(tasks)
    # The two floors apart, so that neither finds its own code in the processor's cache.
    found: dict[str, Work] = {FLOOR: least.floor, PLAIN: least.plain, READ: least.read, AGAIN: least.floor}
    peers: dict[str, str] = {}
    for text in texts or EXPRESSIONS:
        found[text] = Step(text)
        name = only_member(text)
        if name == "gradnorm":
            found.update({NORMS: least.norms, NORMS_READ: least.norms_read})
            peers[text] = NORMS_READ
        elif name in combine_peers.NAMES:
            peers[text] = f"torchjd {combine_peers.NAMES[name]}"
            found.setdefault(peers[text], combine_peers.peer(combine_peers.NAMES[name], tasks))
    return found, peers


def only_member(text: str) -> str:
    """The name of the only homogenizer of an expression, `none` for an empty one; empty for several."""
    members = expression.parse(text)
    return "none" if not members else members[0][0] if len(members) == 1 else ""


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All works on gradients of `shape`, tasks x params."""
    tasks, params = shape
    made, peers = works(texts, tasks)
    return Case(
        made,
        Source(tasks, params),
        (FLOOR,),
        f"one step on J, the gradients of {tasks} task{'s' if tasks > 1 else ''} by {params:,} parameters",
        (
            f"{FLOOR}: the Gramian of J in the fastest way known, and weights @ J with given weights.",
            f"{AGAIN}: the same work; the distance of its ratio from × 1.00 is the error of this measurement.",
            f"to {FLOOR}, over {FLOOR}: median over rounds of the ratio and of the difference in the same round.",
            f"to peer: to TorchJD's of that name (gradnorm: to {NORMS_READ}), in the rounds that both were in.",
            INTERVAL_NOTE,
            "Each has an equal share of the time, so slow ones have fewer rounds. Each round has another J; the first "
            "does not count.",
            f"{MEMORY_NOTE}; others than {FLOOR}, which takes one gradient: the difference.",
        ),
        at_least=2,  # the first step of some allocates the state of later ones
        paired=True,
        difference=True,
        peers=peers,
    )


BENCHMARK = Benchmark("combine", "homogenizer", ("tasks x params",), SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))

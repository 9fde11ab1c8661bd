"""Benchmark of one step on a Jacobian: homogenizers, aggregators of TorchJD, and the minimal operations of a step."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torchjd.aggregation
from torch import Tensor

import gradhomog
from gradhomog.errors import PluginRunError
from gradhomog.experiments.profiling.harness import Comparison, Quantiles, Timings, Workload, signed
from gradhomog.registry import expression
from gradhomog.rows import arithmetic
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.columns import Column, ComparisonWithColumns

SHAPES = tuple((tasks, params) for params in (100_000, 1_000_000) for tasks in (2, 4, 8, 16))
"""10⁷ parameters require `--shape`: with 16 tasks the inputs take 1.3 GB, and some peers twice that in addition."""

TORCHJD: Mapping[str, str] = {
    "none": "Mean", "pcgrad": "PCGrad", "gradvac": "GradVac", "mgda": "MGDA", "upgrad": "UPGrad",
    "dualproj": "DualProj", "cagrad": "CAGrad", "imtl_g": "IMTLG", "nash_mtl": "NashMTL", "fairgrad": "FairGrad",
    "aligned_mtl": "AlignedMTL", "config": "ConFIG", "graddrop": "GradDrop", "excess_mtl": "ExcessMTL",
}  # fmt: skip
"""The class of TorchJD that implements the same method, by the name of the homogenizer."""

EXPRESSIONS = (*(name for name in TORCHJD if name != "excess_mtl"), "gradnorm")

FLOOR, SECOND_FLOOR, READ, PLAIN = "floor", "floor again", "weights @ J", "J @ J.T, weights @ J"


@dataclass(frozen=True)
class Batch:
    """Gradients `[tasks, params]` and losses `[tasks]` of a step."""

    rows: Tensor
    losses: Tensor


@dataclass(frozen=True)
class Gradients:
    """Gradients of each round: normal random numbers that are drawn once, multiplied by a new matrix in each round.

    J = (I + M/√tasks) Z, with Z drawn once and a normal random M in each round: rows of different norms that agree and
    conflict, in a fraction of the time of drawing J. J overwrites the J of the previous round. Memory: Z and J,
    allocated in the first round.
    """

    tasks: int
    params: int

    @cached_property
    def _noise_and_buffer(self) -> tuple[Tensor, Tensor]:
        noise = torch.randn(self.tasks, self.params, generator=torch.Generator().manual_seed(0))
        return noise, torch.empty_like(noise)

    def batch(self, number: int) -> Batch:
        noise, mixed = self._noise_and_buffer
        random = torch.Generator().manual_seed(number + 1)
        mixing = torch.eye(self.tasks) + torch.randn(self.tasks, self.tasks, generator=random) / self.tasks**0.5
        torch.mm(mixing, noise, out=mixed)
        return Batch(mixed, 0.5 + torch.rand(self.tasks, generator=random))


def aggregator(name: str, tasks: int) -> Any:
    """A new aggregator of TorchJD, constructed as its users do."""
    # TorchJD has no defaults for these; values of the authors' scripts (Liu et al. 2021, Ban and Ji 2024).
    required: dict[str, dict[str, Any]] = {
        "CAGrad": {"c": 0.4}, "FairGrad": {"alpha": 2.0}, "NashMTL": {"n_tasks": tasks},
    }  # fmt: skip
    return getattr(torchjd.aggregation, name)(**required.get(name, {}))


def peer(name: str, tasks: int) -> Workload:
    """One call of an aggregator of TorchJD on the matrix."""
    aggregate = aggregator(name, tasks)

    # Its solver warns. To ignore warnings takes microseconds, so others are called without.
    quiet = partial(warnings.catch_warnings, action="ignore") if name == "NashMTL" else nullcontext

    def call(batch: Batch) -> Tensor:
        try:
            with quiet():
                return aggregate(batch.rows)
        except Exception as cause:  # errors of its solver; the other workloads continue
            raise PluginRunError(f"TorchJD's {name} raised {type(cause).__name__}: {cause}") from cause

    return call


def homogenized(text: str) -> Workload:
    """One complete step of a pipeline."""
    pipe = gradhomog.pipeline(text)
    return lambda batch: pipe.combine(batch.rows, losses=batch.losses)


def minimal_steps(tasks: int) -> dict[str, Callable[[Batch], Any]]:
    """The minimal operations of a step: a statistic of the rows, and their weighted mean with fixed weights."""
    weights = torch.full((tasks,), 1 / tasks)
    return {
        FLOOR: lambda batch: (arithmetic.gramian(batch.rows), weights @ batch.rows),
        PLAIN: lambda batch: (batch.rows @ batch.rows.T, weights @ batch.rows),
        READ: lambda batch: weights @ batch.rows,
    }


def workloads(texts: Sequence[str], tasks: int) -> tuple[dict[str, Workload], dict[str, str]]:
    """The workloads by label, and the label of the peer of each workload that has a peer."""
    minimal = minimal_steps(tasks)
    # Other workloads are between the two floors, so that neither benefits from the processor's cache.
    found: dict[str, Workload] = {label: minimal[label] for label in (FLOOR, PLAIN, READ)}
    found[SECOND_FLOOR] = minimal[FLOOR]
    peers: dict[str, str] = {}
    for text in texts or EXPRESSIONS:
        found[text] = homogenized(text)
        members = expression.parse(text)
        name = "none" if not members else members[0][0] if len(members) == 1 else ""
        if name in TORCHJD:
            peers[text] = f"torchjd {TORCHJD[name]}"
            found.setdefault(peers[text], peer(TORCHJD[name], tasks))
    return found, peers


def compare(texts: Sequence[str], gradients: Gradients) -> Comparison:
    made, peers = workloads(texts, gradients.tasks)
    return ComparisonWithColumns(
        f"one step on J, the gradients of {gradients.tasks} tasks by {gradients.params:,} parameters",
        made, gradients.batch, FLOOR,
        (
            f"{FLOOR}: the fastest known computation of the Gramian of J, and weights @ J with fixed weights.",
            f"{SECOND_FLOOR}: the same operations; the distance of its ratio from × 1.00 is the measurement error.",
            f"over {FLOOR}: median over rounds of the difference in the same round.",
            "to peer: ratio to the aggregator of TorchJD, in rounds that have both.",
        ),
        shared_budget=False, columns=partial(further_columns, peers),
    )  # fmt: skip


def further_columns(peers: Mapping[str, str], timings: Timings) -> Sequence[Column]:
    """Differences to the floor, and ratios to peers by label."""
    finished = timings.finished
    over = {
        label: Quantiles.of([seconds - other for seconds, other in timings.pairs(label, FLOOR)])
        for label in finished
        if label != FLOOR
    }
    to_peer = {label: timings.ratio(label, peers[label]) for label in finished if peers.get(label) in finished}
    text = lambda value: f"{signed(value.median * 1e3)} ms"  # noqa: E731
    return [Column(f"over {FLOOR}", over, text), Column("to peer", to_peer)]


BENCHMARK = Benchmark("combine", {"tasks x params": Gradients}, SHAPES, compare)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(__doc__))

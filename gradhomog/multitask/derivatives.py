"""Derivatives of the losses by what they share and by what is their own: task by task, or all in one pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradhomog.multitask.given import as_dense

SMALLEST_SHARE = {False: 1e-6, True: 1e-2}
"""The smallest weight that a head's gradient comes through unhurt; True: on a graph that may be of half precision."""

Gradients = list[Tensor | None]
Parts = dict[str, Gradients]
"""For each shared parameter one gradient per task, None where the loss does not depend on it."""


@dataclass
class Graph:
    """What is differentiated.

    Attributes:
        losses: one scalar per task.
        shared: parameters by name.
        own: for each task the other leaves that its loss reaches.
        factor: of every derivative, against underflow in half precision.
        create_graph, retain_graph: as in `torch.autograd.grad`.
    """

    losses: Sequence[Tensor]
    shared: Mapping[str, Tensor]
    own: Sequence[Sequence[Tensor]]
    factor: float = 1.0
    create_graph: bool = False
    retain_graph: bool = False

    def gradients(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor], last: bool
    ) -> Gradients:
        """Σ over outputs of cotangent · ∂output/∂input; the graph is freed after the last use of it."""
        if not inputs or not outputs:
            return [None] * len(inputs)
        found = torch.autograd.grad(
            outputs, inputs, cotangents, retain_graph=self.retain_graph or self.create_graph or not last,
            create_graph=self.create_graph, allow_unused=True,
        )  # fmt: skip
        return [as_dense(gradient) for gradient in found]

    def seed(self, loss: Tensor) -> Tensor:
        return torch.full_like(loss, self.factor)


@dataclass
class Derivatives(ABC):
    """The two ways to a direction: rows, one pass per task; or the weighted sum of them, in one pass.

    Attributes:
        own: for each task the gradients of its own leaves, once either way was gone.
    """

    graph: Graph
    own: list[Gradients] = field(default_factory=list, init=False)

    @abstractmethod
    def rows(self) -> Parts:
        """One gradient per task and shared parameter."""

    @abstractmethod
    def some_rows(self, names: Sequence[str]) -> Parts:
        """The same of some parameters; the graph is kept for more."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Gradients | None:
        """Σ_i weights_i · row_i by shared parameter; None if only the rows can tell."""

    def _by_name(self, rows: Sequence[Gradients], names: Iterable[str]) -> Parts:
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}


class Direct(Derivatives):
    """From the losses to all leaves in one pass of autograd."""

    def rows(self) -> Parts:
        graph, shared = self.graph, list(self.graph.shared.values())
        rows, self.own = [], []
        for task, (loss, own) in enumerate(zip(graph.losses, graph.own, strict=True)):
            last = task == len(graph.losses) - 1
            found = graph.gradients([loss], [*shared, *own], [graph.seed(loss)], last)
            rows.append(found[: len(shared)])
            self.own.append(found[len(shared) :])
        return self._by_name(rows, graph.shared)

    def some_rows(self, names: Sequence[str]) -> Parts:
        graph, some = self.graph, [self.graph.shared[name] for name in names]
        return self._by_name([graph.gradients([loss], some, [graph.seed(loss)], False) for loss in graph.losses], names)

    def weighted_sum(self, weights: Tensor) -> Gradients | None:
        graph, shared = self.graph, list(self.graph.shared.values())
        own = [leaf for leaves in graph.own for leaf in leaves]
        if len({id(leaf) for leaf in own}) < len(own):
            return None  # what several losses reach without sharing it cannot be told apart afterwards
        factors: list[float] = weights.tolist()
        # A head's gradient comes out of the same pass with its task's weight on it; a weight that could lose digits of
        # it on the way gets a pass through the head of its own.
        least = SMALLEST_SHARE[graph.factor != 1 or any(loss.dtype.itemsize < 4 for loss in graph.losses)]
        with_it = [abs(factor) > least for factor in factors]
        self.own = [
            [] if together else graph.gradients([loss], leaves, [graph.seed(loss)], False)
            for together, loss, leaves in zip(with_it, graph.losses, graph.own, strict=True)
        ]
        pulling = [task for task, factor in enumerate(factors) if factor or weights.requires_grad]
        if not pulling:
            return [torch.zeros_like(parameter, requires_grad=False) for parameter in shared]
        losses = [graph.losses[task] for task in pulling]
        shares = [weights[task].to(loss) for task, loss in zip(pulling, losses, strict=True)]
        seeds = [share * graph.seed(loss) for share, loss in zip(shares, losses, strict=True)]
        leaves = [leaf for task in pulling if with_it[task] for leaf in graph.own[task]]
        found = graph.gradients(losses, [*shared, *leaves], seeds, True)
        rest = iter(found[len(shared) :])
        for task, share in zip(pulling, shares, strict=True):
            if not with_it[task]:
                continue
            weighted = [next(rest) for _ in graph.own[task]]
            plain = factors[task] == 1 and not graph.create_graph
            self.own[task] = weighted if plain else [None if part is None else part / share for part in weighted]
        return found[: len(shared)]


class ThroughFeatures(Derivatives):
    """From each loss to the features at once, so that only the shared part is left for rows or their sum."""

    def __init__(self, graph: Graph, features: Sequence[Tensor], taps: Sequence[Sequence[Tensor]] = ()) -> None:
        """`taps`: for each task the tensors between features and head by which it is differentiated, too."""
        super().__init__(graph)
        self.features = list(features)
        self.cotangents: list[Gradients] = []
        self.tap_cotangents: list[Gradients] = []
        for task, (loss, own) in enumerate(zip(graph.losses, graph.own, strict=True)):
            between = list(taps[task]) if taps else []
            last = task == len(graph.losses) - 1 and not taps
            found = graph.gradients([loss], [*self.features, *between, *own], [graph.seed(loss)], last)
            at, after = len(self.features), len(self.features) + len(between)
            self.cotangents.append(found[:at])
            self.tap_cotangents.append(found[at:after])
            self.own.append(found[after:])

    def rows(self) -> Parts:
        tasks, shared = len(self.cotangents), self.graph.shared
        rows = [self._back(row, shared.values(), task == tasks - 1) for task, row in enumerate(self.cotangents)]
        return self._by_name(rows, shared)

    def some_rows(self, names: Sequence[str]) -> Parts:
        some = [self.graph.shared[name] for name in names]
        return self._by_name([self._back(row, some, False) for row in self.cotangents], names)

    def weighted_sum(self, weights: Tensor) -> Gradients:
        total: Gradients = []
        for parts in zip(*self.cotangents, strict=True):
            weighted = [weight.to(part) * part for weight, part in zip(weights, parts, strict=True) if part is not None]
            total.append(torch.stack(weighted).sum(0) if weighted else None)
        return self.back(total)

    def back(self, cotangents: Gradients) -> Gradients:
        """The shared parameters' gradient that belongs to a cotangent of the features."""
        return self._back(cotangents, self.graph.shared.values(), True)

    def _back(self, cotangents: Gradients, inputs: Iterable[Tensor], last: bool) -> Gradients:
        pairs = [(x, c) for x, c in zip(self.features, cotangents, strict=True) if c is not None]
        return self.graph.gradients([x for x, _ in pairs], list(inputs), [c for _, c in pairs], last)


class Summed(Derivatives):
    """Rows of several batches, added up: what there is of them already."""

    def __init__(self, graph: Graph, parts: Parts, own: list[Gradients]) -> None:
        super().__init__(graph)
        self._parts, self.own = parts, own

    def rows(self) -> Parts:
        return self._parts

    def some_rows(self, names: Sequence[str]) -> Parts:
        return {name: self._parts[name] for name in names}

    def weighted_sum(self, weights: Tensor) -> None:
        return None

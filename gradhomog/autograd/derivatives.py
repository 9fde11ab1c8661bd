"""Gradients of losses w.r.t. shared parameters and heads: one pass per task, or one pass for their weighted sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.autograd.backward_pass import backward_pass
from gradhomog.ranks.dtensors import check_not_gathered

SMALLEST_SHARE = 1e-2
"""The smallest weight by which a head's gradient is divided again; with smaller ones half precision underflows."""

Gradients = list[Tensor | None]
TaskGradients = dict[str, Gradients]
"""For each shared parameter one gradient per task, None if the loss does not depend on it."""


@dataclass
class LossGraph:
    """The losses to differentiate, with the leaves that they depend on.

    Attributes:
        losses: one scalar per task.
        shared: the shared parameters by name.
        unshared_leaves: for each task the other leaves that its loss depends on.
        factor: factor of every gradient, against underflow in half precision.
        create_graph, retain_graph: as in `torch.autograd.grad`.
        compiled: the nodes of compiled functions in the graph.
        loss_weights: factor of each loss, 1 by default; across ranks the number of its examples on this rank. They
            multiply the losses, not their gradients, because a backward pass through a layer that all ranks compute
            together, such as SyncBatchNorm, adds up gradients of other ranks' losses.
    """

    losses: Sequence[Tensor]
    shared: Mapping[str, Tensor]
    unshared_leaves: Sequence[Sequence[Tensor]]
    factor: float = 1.0
    create_graph: bool = False
    retain_graph: bool = False
    compiled: Sequence[Any] = ()
    loss_weights: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.loss_weights = self.loss_weights or [1.0] * len(self.losses)

    def gradients(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], output_grads: Sequence[Tensor], last: bool
    ) -> Gradients:
        """Return Σ over outputs of output_grad · ∂output/∂input; the last call frees the graph."""
        if not inputs or not outputs:
            return [None] * len(inputs)
        found = backward_pass(
            outputs, inputs, output_grads, retain_graph=self.retain_graph or self.create_graph or not last,
            create_graph=self.create_graph, compiled=self.compiled,
        )  # fmt: skip
        check_not_gathered(inputs)
        plain = [_as_type_of(leaf, gradient) for leaf, gradient in zip(inputs, found, strict=True)]
        if all(gradient is None or gradient.layout == torch.strided for gradient in plain):
            return plain
        return [as_dense(gradient) for gradient in plain]  # gradients of a sparse embedding

    def task_gradients(self, task: int, inputs: Sequence[Tensor], last: bool) -> Gradients:
        """Return the gradients of one task's loss; the last call frees the graph."""
        loss = self.losses[task]
        initial = torch.full_like(loss, self.loss_weights[task] * self.factor)
        found = self.gradients([loss], inputs, [initial], last)
        return found if self.counts(task) else [None] * len(found)

    def counts(self, task: int) -> bool:
        """False for a loss with a weight of 0 that is not finite, such as a mean over no labels: 0 · NaN is not 0."""
        return self.loss_weights[task] != 0 or bool(self.losses[task].isfinite())


@dataclass
class Derivatives(ABC):
    """The gradients of the losses, either one per task or as a weighted sum from one pass.

    Attributes:
        unshared_gradients: for each task the gradients of `graph.unshared_leaves`; available after `rows` or
            `weighted_sum`.
    """

    graph: LossGraph
    unshared_gradients: list[Gradients] = field(default_factory=list, init=False)

    @abstractmethod
    def iterate(self) -> Iterator[Gradients]:
        """Yield the gradients of the shared parameters, one task after the other; computed when they are required."""

    def rows(self) -> TaskGradients:
        """Return one gradient per task and shared parameter."""
        return self._by_name(list(self.iterate()), self.graph.shared)

    @abstractmethod
    def some_rows(self, names: Sequence[str]) -> TaskGradients:
        """Return the rows of some parameters; the graph is kept for the others."""

    @property
    @abstractmethod
    def one_pass(self) -> bool:
        """True if `weighted_sum` takes one backward pass."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Gradients | None:
        """Return Σ_i weights_i · row_i for each shared parameter; None unless `one_pass`: compute it from the rows."""

    def _by_name(self, rows: Sequence[Gradients], names: Iterable[str]) -> TaskGradients:
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}


class DirectDerivatives(Derivatives):
    """Differentiates the losses w.r.t. all leaves in one pass."""

    def iterate(self) -> Iterator[Gradients]:
        graph, shared = self.graph, list(self.graph.shared.values())
        self.unshared_gradients = []
        for task, unshared in enumerate(graph.unshared_leaves):
            found = graph.task_gradients(task, [*shared, *unshared], task == len(graph.losses) - 1)
            self.unshared_gradients.append(found[len(shared) :])
            yield found[: len(shared)]

    def some_rows(self, names: Sequence[str]) -> TaskGradients:
        graph, some = self.graph, [self.graph.shared[name] for name in names]
        rows = [graph.task_gradients(task, some, False) for task in range(len(graph.losses))]
        return self._by_name(rows, names)

    @property
    def one_pass(self) -> bool:
        """False if two losses depend on one leaf that is not shared: its summed gradient cannot be split by task."""
        unshared = [leaf for leaves in self.graph.unshared_leaves for leaf in leaves]
        return len({id(leaf) for leaf in unshared}) == len(unshared)

    def weighted_sum(self, weights: Tensor) -> Gradients | None:
        graph, shared = self.graph, list(self.graph.shared.values())
        if not self.one_pass:
            return None
        factors: list[float] = weights.tolist()
        # The same pass returns a head's gradient multiplied by its task's weight, which is then divided out. If the
        # weight is so small that digits would be lost, a separate pass differentiates the head.
        together = [abs(factor) > SMALLEST_SHARE for factor in factors]
        self.unshared_gradients = [
            [None] * len(leaves) if together[task] else graph.task_gradients(task, leaves, False)
            for task, leaves in enumerate(graph.unshared_leaves)
        ]
        active = [task for task, factor in enumerate(factors) if factor or weights.requires_grad]
        if not active:
            return [torch.zeros_like(parameter, requires_grad=False) for parameter in shared]
        losses = [graph.losses[task] for task in active]
        shares: list[Any] = [factors[task] for task in active]
        if weights.requires_grad:  # keep the graph of the weights
            shares = [weights[task].to(loss) for task, loss in zip(active, losses, strict=True)]
            output_grads = [share * graph.factor for share in shares]
        else:
            scales = [graph.factor * graph.loss_weights[task] * factors[task] for task in active]
            output_grads = [torch.full_like(loss, scale) for loss, scale in zip(losses, scales, strict=True)]
        leaves = [leaf for task in active if together[task] for leaf in graph.unshared_leaves[task]]
        found = graph.gradients(losses, [*shared, *leaves], output_grads, True)
        rest = iter(found[len(shared) :])
        for task, share in zip(active, shares, strict=True):
            if not together[task]:
                continue
            weighted = [next(rest) for _ in graph.unshared_leaves[task]]
            unchanged = factors[task] == 1 and not graph.create_graph
            if not unchanged:
                weighted = [None if part is None else part / share for part in weighted]
            self.unshared_gradients[task] = weighted
        return found[: len(shared)]


class FeatureDerivatives(Derivatives):
    """Differentiates each loss w.r.t. the features in the constructor, and then the shared part for the rows or sums.

    Attributes:
        features: the outputs of the shared part.
        feature_grads: for each task the gradients of its loss w.r.t. the features.
        stage_feature_grads: for each task the gradients w.r.t. the tensors between features and head.
    """

    def __init__(
        self, graph: LossGraph, features: Sequence[Tensor], stage_features: Sequence[Sequence[Tensor]] = ()
    ) -> None:
        super().__init__(graph)
        self.features = list(features)
        self.feature_grads: list[Gradients] = []
        self.stage_feature_grads: list[Gradients] = []
        for task, unshared in enumerate(graph.unshared_leaves):
            between = list(stage_features[task]) if stage_features else []
            last = task == len(graph.losses) - 1 and not stage_features
            found = graph.task_gradients(task, [*self.features, *between, *unshared], last)
            at, after = len(self.features), len(self.features) + len(between)
            self.feature_grads.append(found[:at])
            self.stage_feature_grads.append(found[at:after])
            self.unshared_gradients.append(found[after:])

    def iterate(self) -> Iterator[Gradients]:
        tasks, shared = len(self.feature_grads), self.graph.shared.values()
        for task, row in enumerate(self.feature_grads):
            yield self._backpropagate(row, shared, task == tasks - 1)

    def some_rows(self, names: Sequence[str]) -> TaskGradients:
        some = [self.graph.shared[name] for name in names]
        return self._by_name([self._backpropagate(row, some, False) for row in self.feature_grads], names)

    @property
    def one_pass(self) -> bool:
        return True

    def weighted_sum(self, weights: Tensor) -> Gradients:
        # Numbers of the CPU, which a GPU multiplies by without a copy that it would have to wait for.
        numbers = weights.tolist()
        factors: list[Any] = list(weights.unbind()) if weights.requires_grad else numbers
        # Zero times a gradient that is not finite would not be zero.
        active = [weights.requires_grad or number != 0 for number in numbers]
        total: Gradients = []
        for parts in zip(*self.feature_grads, strict=True):
            weighted = [
                factor * part if used else torch.zeros_like(part)
                for factor, part, used in zip(factors, parts, active, strict=True)
                if part is not None
            ]
            total.append(torch.stack(weighted).sum(0) if weighted else None)
        return self.backpropagate(total)

    def backpropagate(self, feature_grads: Gradients) -> Gradients:
        """Backpropagate one gradient w.r.t. the features to the shared parameters."""
        return self._backpropagate(feature_grads, self.graph.shared.values(), True)

    def _backpropagate(self, feature_grads: Gradients, inputs: Iterable[Tensor], last: bool) -> Gradients:
        pairs = [(x, grad) for x, grad in zip(self.features, feature_grads, strict=True) if grad is not None]
        return self.graph.gradients([x for x, _ in pairs], list(inputs), [grad for _, grad in pairs], last)


class SummedDerivatives(Derivatives):
    """Sums of the gradients of several batches, computed before."""

    def __init__(self, graph: LossGraph, rows: TaskGradients, unshared_gradients: list[Gradients]) -> None:
        super().__init__(graph)
        self._rows, self.unshared_gradients = rows, unshared_gradients

    def iterate(self) -> Iterator[Gradients]:
        for row in zip(*self._rows.values(), strict=True):
            yield list(row)

    def rows(self) -> TaskGradients:
        return self._rows

    def some_rows(self, names: Sequence[str]) -> TaskGradients:
        return {name: self._rows[name] for name in names}

    @property
    def one_pass(self) -> bool:
        return False

    def weighted_sum(self, weights: Tensor) -> None:
        return None


def as_dense(gradient: Tensor | None) -> Tensor | None:
    """Convert the sparse gradient of an embedding to a dense tensor; return other gradients unchanged."""
    return gradient.to_dense() if gradient is not None and gradient.layout != torch.strided else gradient


def _as_type_of(leaf: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return the gradient of a plain tensor or parameter as a plain tensor.

    If one leaf belongs to a subclass of Tensor, such as labelled collocation points, `torch.autograd.grad` returns the
    gradients of all leaves in that subclass.
    """
    if gradient is None or type(gradient) is Tensor or type(leaf) not in (Tensor, nn.Parameter):
        return gradient
    return gradient.as_subclass(Tensor)

"""The source of the rows of a step from losses: this process, or an exchange of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives, FeatureDerivatives
from gradhomog.autograd.lazy import LossRows, require_used
from gradhomog.autograd.loss_step import LossStep
from gradhomog.errors import NonfiniteError
from gradhomog.rows import DenseRows, Direction, Jacobian, all_finite
from gradhomog.step.step import Step, task_keys

LeafGradients = list[tuple[Tensor, Tensor]]
"""Leaves with the gradients to add to their `.grad`."""

C = TypeVar("C")


class RowSource(ABC, Generic[C]):
    """The source of the rows of one step.

    Args:
        step: the losses and options.
        derivatives: the derivatives of the losses of this process.
        communicator: that of the step.

    Attributes:
        exchanged: what ranks exchange, see `StepReport`.
        written_before: for errors, what was written before the rows were complete.
    """

    exchanged: Literal["nothing", "rows", "directions"] = "nothing"
    written_before = ""

    def __init__(self, step: LossStep, derivatives: Derivatives, communicator: C) -> None:
        self._step, self._derivatives, self._communicator = step, derivatives, communicator
        self._graph = derivatives.graph

    @abstractmethod
    def make_step(self) -> Step:
        """Return the record of the step for the pipeline."""

    def to_parameters(self, direction: Direction) -> Direction:
        """Return the direction of the shared parameters from that of the rows."""
        return direction

    @abstractmethod
    def unused(self) -> Collection[str]:
        """Return the names of the parameters that no loss depends on; available after the direction."""

    @abstractmethod
    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        """Return the gradients of parameters that are not shared, times the factor of their task, by slot."""

    def overflow(self) -> None:
        """Called instead of the rest if the rows overflow and a gradient scaler will skip the step."""


class OwnRows(RowSource[C]):
    """The rows of this process."""

    def make_step(self) -> Step:
        tasks, derivatives = self._graph.tasks, self._derivatives
        reads_features = self._step.pipe.requirements.reads_features
        features, feature_grads = derivatives.at_stages() if reads_features else ([], [])
        keys = task_keys(tasks.slots, self._step.present_names)
        return Step(
            keys,
            self._jacobian(),
            torch.stack(tasks.losses).double(),
            features,
            feature_grads,
            self._step.targets,
            self._step.kernel_traces,
        )

    def _jacobian(self) -> Jacobian:
        if self._step.level == "features":
            assert isinstance(self._derivatives, FeatureDerivatives)
            return Jacobian(DenseRows(self._derivatives.feature_rows()))
        ranks = self._step.communicator.size > 1
        memory = "rows" if ranks else self._step.memory
        self._rows = LossRows(self._derivatives, memory, self._step.may_be_unused or ranks)
        if self._step.reads_rows:
            self._rows.stored()
        return Jacobian(self._rows)

    def to_parameters(self, direction: Direction) -> Direction:
        if self._step.level != "features":
            return direction
        gradients = backpropagate(self._derivatives, direction)
        self._unused = {name for name, gradient in gradients.items() if gradient is None}
        require_used(self._graph.shared, self._unused)
        found = {
            name: torch.zeros_like(self._graph.shared[name], requires_grad=False) if part is None else part
            for name, part in gradients.items()
        }
        return finite_direction(found, self._graph.factor)

    def unused(self) -> Collection[str]:
        return self._unused if self._step.level == "features" else self._rows.unused

    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        graph = self._graph
        found: LeafGradients = []
        per_task = zip(graph.tasks.slots, graph.unshared_leaves, self._derivatives.unshared_gradients, strict=True)
        for slot, leaves, gradients in per_task:
            for leaf, gradient in zip(leaves, gradients, strict=True):
                if gradient is not None and slot in factors:  # a task may have been dropped
                    found.append((leaf, gradient if factors[slot] == 1 else factors[slot] * gradient))
        return found


def backpropagate(derivatives: Derivatives, direction: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Backpropagate a homogenized gradient w.r.t. the features; the result has the factor of the gradient scaler."""
    assert isinstance(derivatives, FeatureDerivatives)  # of level="features"
    graph = derivatives.graph
    pairs = zip(direction.values(), derivatives.features, strict=True)
    gradients = derivatives.backpropagate([(graph.factor * grad).to(feature.dtype) for grad, feature in pairs])
    return dict(zip(graph.shared, gradients, strict=True))


def finite_direction(gradients: Mapping[str, Tensor], factor: float) -> Direction:
    """Return a direction that was backpropagated through the shared part, without the factor.

    Raises:
        NonfiniteError.
    """
    if not all_finite(gradients.values()):
        raise NonfiniteError(
            "the gradient of the shared parameters is not finite, although every task's gradient w.r.t. the features "
            "is. Lower the learning rate. Nothing was changed."
        )
    return {name: gradient / factor for name, gradient in gradients.items()}

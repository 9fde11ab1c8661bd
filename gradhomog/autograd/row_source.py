"""The source of the rows of a step from losses: this process, or an exchange of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Literal

import torch
from torch import Tensor

from gradhomog.autograd.backward_pass import Gradients
from gradhomog.autograd.derivatives import Derivatives, FeatureDerivatives
from gradhomog.autograd.lazy import LossRows, require_used
from gradhomog.autograd.loss_step import LossStep
from gradhomog.errors import NonfiniteError
from gradhomog.rows import DenseRows, Direction, Jacobian, all_finite
from gradhomog.step.step import Step

LeafGradients = list[tuple[Tensor, Tensor]]
"""Leaves with the gradients to add to their `.grad`."""


class RowSource(ABC):
    """The source of the rows of one step.

    Args:
        step: the losses and options.
        derivatives: the derivatives of the losses of this process.

    Attributes:
        exchanged: what ranks exchange, see `StepReport`.
        written_before: for errors, what was written before the rows were complete.
    """

    exchanged: Literal["nothing", "rows", "directions"] = "nothing"
    written_before = ""

    def __init__(self, step: LossStep, derivatives: Derivatives) -> None:
        self._step, self._derivatives, self._graph = step, derivatives, derivatives.graph
        self._options, self._communicator = step.options, step.options.communicator

    @abstractmethod
    def make_step(self) -> Step:
        """Return the record of the step for the pipeline."""

    @abstractmethod
    def to_parameters(self, direction: Direction) -> tuple[Direction, Collection[str]]:
        """Return the direction of the shared parameters, and the names of those that no loss depends on."""

    @abstractmethod
    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        """Return the gradients of parameters that are not shared, times the factor of their task, by slot."""

    @property
    def reads_rows(self) -> bool:
        """True if the step requires the rows themselves, not only norms, inner products or a weighted mean."""
        options, pipe = self._options, self._options.pipe
        drop = pipe.nonfinite == "drop" and not self._derivatives.scaled
        return drop or options.per != "model" or pipe.debug or "jacobian" in pipe.requirements.statistics

    def overflow(self) -> None:  # noqa: B027  most sources have nothing to exchange
        """Called instead of the rest if the rows overflow and a gradient scaler will skip the step."""


class OwnRows(RowSource):
    """The rows of this process."""

    def make_step(self) -> Step:
        step, pipe = self._step, self._options.pipe
        features, feature_grads = self._derivatives.at_stages() if pipe.requirements.reads_features else ([], [])
        with torch.set_grad_enabled(self._derivatives.create_graph):
            losses = torch.stack(self._graph.tasks.losses).double()
        return Step(
            step.keys, self._jacobian(), losses, features, feature_grads, step.targets, step.kernel_traces, pipe.steps
        )

    def _jacobian(self) -> Jacobian:
        if self._options.level == "features":
            return Jacobian(DenseRows(of_features(self._derivatives).feature_rows()))
        ranks = self._communicator.size > 1
        memory = "rows" if ranks else self._options.memory
        self._rows = LossRows(self._derivatives, memory, self._step.may_be_unused or ranks)
        if self.reads_rows:
            self._rows.stored()
        return Jacobian(self._rows)

    def to_parameters(self, direction: Direction) -> tuple[Direction, Collection[str]]:
        if self._options.level != "features":
            return direction, self._rows.unused
        gradients = backpropagate(self._derivatives, direction)
        unused = {name for name, gradient in gradients.items() if gradient is None}
        require_used(self._graph.shared, unused)
        found = {
            name: torch.zeros_like(self._graph.shared[name], requires_grad=False) if part is None else part
            for name, part in gradients.items()
        }
        return finite_direction(found, self._derivatives.factor), unused

    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        return [
            (leaf, gradient if factors[slot] == 1 else factors[slot] * gradient)
            for slot, leaf, gradient in self._derivatives.head_gradients()
            if slot in factors and gradient is not None  # a task may have been dropped
        ]


def of_features(derivatives: Derivatives) -> FeatureDerivatives:
    """Return the derivatives of a step with `level="features"`."""
    assert isinstance(derivatives, FeatureDerivatives)  # because features are then required
    return derivatives


def backpropagate(derivatives: Derivatives, direction: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Backpropagate a homogenized gradient w.r.t. the features; the result has the factor of the gradient scaler."""
    graph, pairs = derivatives.graph, zip(direction.values(), derivatives.graph.features, strict=True)
    grads: Gradients = [(derivatives.factor * grad).to(feature.dtype) for grad, feature in pairs]
    return dict(zip(graph.shared, of_features(derivatives).backpropagate(grads), strict=True))


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

"""The rows of all ranks, and the step that every rank computes from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from gradhomog.autograd.apply import ComputedStep, Gradients, Options, head_factors, infinite_step
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.by_group import compute_by_group
from gradhomog.autograd.lazy import require_used
from gradhomog.errors import NonfiniteError
from gradhomog.rows import Direction, Jacobian
from gradhomog.step.pipelines import Pipeline

HeadGradients = list[tuple[int, Tensor, Tensor]]
"""Slot of the task, leaf, and gradient."""


@dataclass(frozen=True)
class RowsOfRanks:
    """The rows of all ranks, with the losses, slots and domains of their tasks.

    Attributes:
        used: returns, for each rank and parameter, 1 if a loss of that rank depends on it, `[ranks, parameters]`.
        heads: returns the gradients of parameters that are not shared. Both are called after the pipeline, which may
            require one backward pass instead of the rows.
        inputs: other inputs of the step, for `Pipeline.compute`.
        to_parameters: returns the direction of the parameters from that of the rows.
    """

    jacobian: Jacobian
    losses: Tensor
    slots: Sequence[int]
    domains: Sequence[str] | None
    used: Callable[[], Tensor]
    heads: Callable[[], HeadGradients]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    to_parameters: Callable[[Direction], Direction] = dict

    def homogenize(self, pipe: Pipeline, batch: Batch, options: Options) -> ComputedStep:
        """Compute the step.

        Raises:
            NonfiniteError, PluginRunError: on all ranks; nothing was written, no state assigned.
        """
        graph = batch.derivatives.graph
        try:
            result, pending = compute_by_group(pipe, self.jacobian, self.losses, options.per, {
                "domains": self.domains, "slots": self.slots, "inspect": options.inspect,
                "nonfinite": "raise" if options.scaled else None, **self.inputs,
            })  # fmt: skip
            direction = self.to_parameters(result.direction)
        except NonfiniteError:
            if not options.scaled:
                raise
            return infinite_step(batch)
        used = self.used()
        if not used.any():
            require_used(graph.shared, frozenset(graph.shared))
        result = replace(result, direction=direction, exchanged="rows")
        factors = head_factors(result, options.heads)
        unshared = [(leaf, factors[slot] * gradient) for slot, leaf, gradient in self.heads() if slot in factors]
        shared = shared_gradients(graph.shared, graph.factor, direction, used)
        return ComputedStep(result, shared, unshared, pending)


def shared_gradients(
    shared: Mapping[str, Tensor], factor: float, direction: Mapping[str, Tensor], used: Tensor
) -> Gradients:
    """Return the gradients of the parameters that a loss of any rank depends on, the same on all ranks."""
    named = zip(direction.items(), used.any(0).tolist(), strict=True)
    return [
        (shared[name], gradient if factor == 1 else factor * gradient)
        for (name, gradient), needed in named
        if needed or bool(gradient.any())  # of rows that a homogenizer kept from earlier steps
    ]

"""The options, values and shapes that must be the same on all ranks before they exchange rows."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gradhomog.autograd.loss_graph import LossGraph
from gradhomog.autograd.loss_step import LossStep
from gradhomog.ranks.ranks import Ranks, pipeline_values
from gradhomog.ranks.replicas import compares_in_full, tensors_to_compare


def replicas_to_compare(step: LossStep, graph: LossGraph, ranks: Ranks) -> dict[str, Tensor]:
    """Return what must have the same values on all ranks, by a description.

    The leaves of heads in every step, because ranks could use the heads in another order, but only the first element;
    shared parameters, states and whole heads in the steps of `compares_in_full`.
    """
    full = compares_in_full(step.pipe, ranks)
    found = tensors_to_compare(step.pipe, ranks, graph.shared) if full else {}
    for index, leaves in enumerate(graph.unshared_leaves):
        for place, leaf in enumerate(leaves):
            name = f"parameter {place} of the head of task {graph.tasks.label(index)}"
            found[name] = leaf if full else leaf[(slice(0, 1),) * leaf.dim()]
    return found


def values_to_compare(step: LossStep, graph: LossGraph, ranks: Ranks) -> dict[str, object]:
    """Return what must be the same on all ranks before they exchange rows, for `Communicator.agree`."""
    return {
        "calls": "step",
        "options": {
            "over": ranks.over, "local": ranks.local, "gather": ranks.gather,
            "examples": "none" if ranks.examples is None else "numbers", "level": step.level,
            "per": step.per, "compare_every": ranks.compare_every,
            "heads": step.heads, "inspect": step.inspect, "scaler": step.scaled,
            "residuals": step.kernel_traces is not None, "targets": step.targets is not None,
        },
        "parameters": [(name, tuple(value.shape), value.dtype) for name, value in graph.shared.items()],
        **pipeline_values(step.pipe),
    }  # fmt: skip


def head_shapes(graph: LossGraph) -> list[tuple[int, list[tuple[int, ...]]]]:
    """Return the shapes of the leaves of each task that has a head, which must be the same on all ranks."""
    pairs = zip(graph.tasks.slots, graph.unshared_leaves, strict=True)
    return [(slot, [tuple(leaf.shape) for leaf in leaves]) for slot, leaves in pairs if leaves]


def flags_of_used(names: Mapping[str, Tensor], unused: frozenset[str]) -> list[float]:
    """Return for each parameter 1 if a loss of this rank depends on it, else 0."""
    return [float(name not in unused) for name in names]

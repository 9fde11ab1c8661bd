"""The options, values and shapes that must be the same on all ranks before they exchange rows."""

from __future__ import annotations

from torch import Tensor

from gradhomog.autograd.apply import Options
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.lazy import LazyJacobian
from gradhomog.ranks.ranks import Ranks, pipeline_values
from gradhomog.ranks.replicas import compares_in_full, tensors_to_compare
from gradhomog.step.pipelines import Pipeline


def replicas_to_compare(pipe: Pipeline, batch: Batch, ranks: Ranks) -> dict[str, Tensor]:
    """Return what must have the same values on all ranks, by a description.

    The leaves of heads in every step, because ranks could use the heads in another order, but only the first element;
    shared parameters, states and whole heads in the steps of `compares_in_full`.
    """
    full = compares_in_full(pipe, ranks)
    found = tensors_to_compare(pipe, ranks, batch.derivatives.graph.shared) if full else {}
    for index, leaves in enumerate(batch.unshared_leaves):
        for place, leaf in enumerate(leaves):
            name = f"parameter {place} of the head of task {batch.tasks.label(index)}"
            found[name] = leaf if full else leaf[(slice(0, 1),) * leaf.dim()]
    return found


def values_to_compare(pipe: Pipeline, batch: Batch, options: Options, ranks: Ranks, call: str) -> dict[str, object]:
    """Return what must be the same on all ranks before they exchange rows, for `Collectives.agree`."""
    shared = batch.derivatives.graph.shared
    return {
        "calls": call,
        "options": {
            "over": ranks.over, "local": ranks.local, "gather": ranks.gather,
            "examples": "none" if ranks.examples is None else "numbers", "level": options.level,
            "per": options.per, "compare_every": ranks.compare_every,
            "heads": options.heads, "inspect": options.inspect, "scaler": options.scaled,
            "residuals": options.kernel_traces is not None, "targets": options.targets is not None,
        },
        "parameters": [(name, tuple(value.shape), value.dtype) for name, value in shared.items()],
        **pipeline_values(pipe),
    }  # fmt: skip


def head_shapes(batch: Batch) -> list[tuple[int, list[tuple[int, ...]]]]:
    """Return the shapes of the leaves of each task that has a head, which must be the same on all ranks."""
    pairs = zip(batch.tasks.slots, batch.unshared_leaves, strict=True)
    return [(slot, [tuple(leaf.shape) for leaf in leaves]) for slot, leaves in pairs if leaves]


def used_by_this_rank(jacobian: LazyJacobian) -> list[float]:
    """Return for each parameter 1 if a loss of this rank depends on it, else 0."""
    return [float(name not in jacobian.unused) for name in jacobian.names]

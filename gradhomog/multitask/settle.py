"""From what batches show to the step: their rows homogenized, and the direction written into `.grad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.homogenization import Homogenization
from gradhomog.multitask.collected import Collected
from gradhomog.multitask.deferred import DeferredRows
from gradhomog.multitask.derivatives import Gradients, ThroughFeatures
from gradhomog.multitask.groups import Per, grouped
from gradhomog.multitask.writing import accumulate
from gradhomog.pipelines import Pipeline
from gradhomog.rows import AnyRows

Level = Literal["parameters", "features"]
Heads = Literal["own", "weighted"]


@dataclass(frozen=True)
class Way:
    """How a step is to be taken: the options of `gradhomog.backward`."""

    domains: Sequence[str] | None = None
    targets: Tensor | None = None
    level: Level = "parameters"
    per: Per = "model"
    heads: Heads = "own"
    inspect: bool = False
    overflow: bool = False


def settle(pipe: Pipeline, batch: Collected, rows: AnyRows, way: Way) -> Homogenization:
    """Homogenize the rows, and write: the direction to the shared parameters, and to each head what is its own.

    Raises:
        NonfiniteError, OptionError, PluginRunError, NotDifferentiableError: nothing was written.
    """
    graph = batch.derivatives.graph
    losses = torch.stack([loss.double() for loss in batch.losses])
    domains = way.domains or batch.names
    shown: dict[str, Any] = {
        "domains": domains, "features": batch.features, "feature_cotangents": batch.cotangents, "targets": way.targets,
        "create_graph": graph.create_graph, "inspect": way.inspect,
    }  # fmt: skip
    try:
        found = _homogenized(pipe, rows, losses, way, shown)
    except NonfiniteError:
        if not way.overflow:
            raise
        return _overflowed(batch)
    assert isinstance(found.direction, dict)
    direction: Mapping[str, Tensor] = found.direction
    if way.level == "features":
        assert isinstance(batch.derivatives, ThroughFeatures)
        cotangents: Gradients = [graph.factor * cotangent for cotangent in direction.values()]
        back = batch.derivatives.back(cotangents)
        direction = {name: g for name, g in zip(graph.shared, back, strict=True) if g is not None}
        for name, gradient in direction.items():
            accumulate(graph.shared[name], gradient, shared_memory=True)
    else:
        assert isinstance(rows, DeferredRows)
        for name, gradient in direction.items():
            if name not in rows.unused:
                accumulate(graph.shared[name], gradient if graph.factor == 1 else graph.factor * gradient)
    _write_own(batch, found, way.heads)
    return found


def _homogenized(pipe: Pipeline, rows: AnyRows, losses: Tensor, way: Way, shown: Mapping[str, Any]) -> Homogenization:
    if way.per == "model":
        return pipe.homogenize(rows, losses, **shown)
    if not isinstance(rows, DeferredRows):
        raise OptionError("`per` groups parameters; with level='features' there are none to group. Leave one out.")
    separate, direction, measured = rows.separate(), {}, {}
    tasks: tuple[int, ...] = tuple(range(rows.tasks))
    gramians = []
    for name, members in grouped(rows.names, way.per).items():
        found = pipe.part(name).homogenize(separate.only(members), losses, **shown)
        assert isinstance(found.direction, dict)
        direction.update(found.direction)
        measured.update({f"{name}: {what}": numbers for what, numbers in found.measured.items()})
        tasks = tuple(task for task in tasks if task in found.tasks)
        gramians.append(found.gramian)
    known = [gramian for gramian in gramians if gramian is not None]
    gramian = torch.stack(known).sum(0) if len(known) == len(gramians) and len(tasks) == rows.tasks else None
    return Homogenization(direction, tasks, None, gramian, (), measured)


def _write_own(batch: Collected, found: Homogenization, heads: Heads) -> None:
    factors = dict.fromkeys(found.tasks, 1.0)
    if heads == "weighted":
        if found.weights is None:
            raise OptionError(
                "heads='weighted' needs a pipeline whose step is a weighted mean of the tasks' gradients; this one "
                "replaces rows, or treats groups of parameters apart. Use heads='own'."
            )
        factors = dict(zip(found.tasks, (found.weights / len(found.tasks)).tolist(), strict=True))
    for task, pairs in enumerate(batch.own_gradients):
        for leaf, gradient in pairs:
            if gradient is not None and task in factors:
                weighted = gradient if heads == "own" else factors[task] * gradient
                accumulate(leaf, weighted, shared_memory=heads == "own")


def _overflowed(batch: Collected) -> Homogenization:
    """Infinity where a scaler looks for it: it will skip this step and lower its scale. Nothing was learnt."""
    shared = batch.derivatives.graph.shared
    direction = {name: torch.full_like(parameter, torch.inf, requires_grad=False) for name, parameter in shared.items()}
    for name, gradient in direction.items():
        accumulate(shared[name], gradient)
    return Homogenization(direction, (), None, None)

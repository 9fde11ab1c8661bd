"""From what batches show to the step: their rows homogenized, and the direction written into `.grad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gradhomog.engine import finite
from gradhomog.engine.observation import Observation
from gradhomog.errors import NonfiniteError
from gradhomog.evidence import task_keys
from gradhomog.homogenization import Homogenization
from gradhomog.multitask.collected import Collected
from gradhomog.multitask.deferred import DeferredRows, require_some
from gradhomog.multitask.derivatives import ThroughFeatures
from gradhomog.multitask.groups import Per, grouped
from gradhomog.multitask.writing import accumulate
from gradhomog.pipelines import Pipeline
from gradhomog.rows import AnyRows, all_finite

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
    shown: dict[str, Any] = {
        "domains": way.domains or batch.names, "features": batch.features, "feature_cotangents": batch.cotangents,
        "targets": way.targets, "create_graph": graph.create_graph, "inspect": way.inspect,
        "nonfinite": "raise" if way.overflow else None,
    }  # fmt: skip
    try:
        found = _homogenized(pipe, rows, losses, way, shown)
        assert isinstance(found.direction, dict)
        if isinstance(rows, DeferredRows):
            direction, unused = found.direction, rows.unused
        else:
            direction, unused = _through_shared(batch, found.direction)
            found = replace(found, direction=direction)
    except NonfiniteError:
        if not way.overflow:
            raise
        return _overflowed(batch)
    for name, gradient in direction.items():
        if name not in unused:
            accumulate(graph.shared[name], gradient if graph.factor == 1 else graph.factor * gradient)
    _write_own(batch, found, way.heads)
    return found


def _homogenized(pipe: Pipeline, rows: AnyRows, losses: Tensor, way: Way, shown: Mapping[str, Any]) -> Homogenization:
    if way.per == "model":
        return pipe.homogenize(rows, losses, **shown)
    assert isinstance(rows, DeferredRows)  # of features there are no groups
    separate, direction, measured = rows.separate(), {}, {}
    # Judged as a whole before any group learns from it: what is not finite in one is out of all.
    keys = task_keys(rows.tasks, tuple(shown["domains"] or ()))
    observation = Observation(separate, losses, keys, shown["features"], shown["feature_cotangents"])
    _, tasks = finite.apply(observation, shown["nonfinite"] or pipe.nonfinite, "rows")
    left_out = torch.tensor([task not in tasks for task in range(rows.tasks)], device=losses.device)
    losses = losses.masked_fill(left_out, torch.nan)
    gramians = []
    for name, members in grouped(rows.names, way.per).items():
        found = pipe.part(name).homogenize(separate.only(members), losses, **shown)
        assert isinstance(found.direction, dict)
        direction.update(found.direction)
        measured.update({f"{name}: {what}": numbers for what, numbers in found.measured.items()})
        gramians.append(found.gramian)
    known = [gramian for gramian in gramians if gramian is not None]
    gramian = torch.stack(known).sum(0) if len(known) == len(gramians) else None
    return Homogenization(direction, tasks, None, gramian, (), measured)


def _through_shared(batch: Collected, cotangents: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], frozenset[str]]:
    """The shared parameters' gradient that belongs to a homogenized derivative by the features; and what has none."""
    derivatives = batch.derivatives
    assert isinstance(derivatives, ThroughFeatures)
    graph = derivatives.graph
    pairs = zip(cotangents.values(), derivatives.features, strict=True)
    back = derivatives.back([(graph.factor * cotangent).to(top.dtype) for cotangent, top in pairs])
    unused = frozenset(name for name, gradient in zip(graph.shared, back, strict=True) if gradient is None)
    require_some(graph.shared, unused)
    direction = {
        name: torch.zeros_like(like, requires_grad=False) if gradient is None else gradient / graph.factor
        for (name, like), gradient in zip(graph.shared.items(), back, strict=True)
    }
    if not all_finite(direction):
        raise NonfiniteError(
            "the gradient that goes back from the features is not finite, though every task's derivative by them is. "
            "Lower the learning rate. Nothing was written; the homogenizers have learnt from this step."
        )
    return direction, unused


def _write_own(batch: Collected, found: Homogenization, heads: Heads) -> None:
    factors = dict.fromkeys(found.tasks, 1.0)
    if heads == "weighted":
        assert found.weights is not None  # by `check`
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
    for leaf in {id(leaf): leaf for leaves in batch.own for leaf in leaves}.values():
        accumulate(leaf, torch.full_like(leaf, torch.inf, requires_grad=False))
    return Homogenization(direction, (), None, None)

"""One batch's losses, ready to be differentiated: what is shared is found, features are taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.multitask.derivatives import Derivatives, Direct, Graph, ThroughFeatures
from gradhomog.multitask.given import Losses, Parameters, features_of, losses_of, parameters_of
from gradhomog.multitask.graph import Reached, reached_by_several
from gradhomog.multitask.task_features import TaskFeatures

Features = Tensor | Sequence[Tensor] | TaskFeatures


@dataclass
class Collected:
    """What a batch's losses show before any row is formed.

    Attributes:
        losses: as they were given, one scalar per task.
        names: of the tasks, if they have any.
        derivatives: of the losses.
        own: for each task the leaves that are not shared.
        features, cotangents: `[tasks, batch, features]` by tap, as `Pipeline.homogenize` takes them; empty without.
    """

    losses: list[Tensor]
    names: tuple[str, ...] | None
    derivatives: Derivatives
    own: list[list[Tensor]]
    features: list[Tensor]
    cotangents: list[Tensor]

    @property
    def own_gradients(self) -> list[list[tuple[Tensor, Tensor | None]]]:
        """For each task its own leaves with their gradients, once rows or their sum were formed."""
        pairs = zip(self.own, self.derivatives.own, strict=True)
        return [list(zip(leaves, gradients, strict=True)) for leaves, gradients in pairs]


def collect(
    given: Losses, parameters: Parameters | None, features: Features | None, factor: float, create_graph: bool,
    retain_graph: bool, through: bool, shown: bool,
) -> Collected:  # fmt: skip
    """Find out what is shared; with `through`, differentiate the losses down to the features.

    `shown`: whether a homogenizer looks at features, so that they are to be put side by side.

    Raises:
        OptionError: see `gradhomog.backward`.
    """
    losses, names = losses_of(given)
    views = features.taps if isinstance(features, TaskFeatures) else []
    if views and len(views) != len(losses):
        raise OptionError(f"`features` are views of {len(views)} tasks; there are {len(losses)} losses.")
    whole = features.features if isinstance(features, TaskFeatures) else features
    tops = [] if whole is None else features_of(whole)
    shared = {} if parameters is None else parameters_of(parameters)
    inner = [tensor for tensor in shared.values() if not tensor.is_leaf]  # what they were made of is not shared
    reached = Reached(until=[*tops, *inner])
    bits = [reached.by(loss) for loss in losses]
    if parameters is None and tops:
        below = Reached()
        for top in tops:
            below.by(top)
        shared = _numbered(below.leaves)
    elif parameters is None:
        shared = _numbered(reached.tensors(reached_by_several(bits)))
    shared_bits = reached.bits(shared.values())
    if not shared:
        raise OptionError(
            f"the {len(losses)} losses must share a parameter; they share none. Pass the shared ones as `parameters` "
            "if they are no leaves of the graph, and check that nothing is detached."
        )
    if tops:
        _check_through_features(bits, shared_bits, names)
    own = [reached.tensors(own_bits & ~shared_bits) for own_bits in bits]
    graph = Graph(losses, shared, own, factor, create_graph, retain_graph)
    if not (tops and through):
        return Collected(losses, names, Direct(graph), own, [], [])
    derivatives = ThroughFeatures(graph, tops, views)
    with torch.set_grad_enabled(create_graph):
        taps, cotangents = _shown(tops, derivatives, views, factor) if shown else ([], [])
    return Collected(losses, names, derivatives, own, taps, cotangents)


def _numbered(leaves: Sequence[Tensor]) -> dict[str, Tensor]:
    return {str(index): leaf for index, leaf in enumerate(leaves)}


def _check_through_features(bits: Sequence[int], shared: int, names: tuple[str, ...] | None) -> None:
    for task, own in enumerate(bits):
        if own & shared:
            raise OptionError(
                f"the loss of task {names[task] if names else task} reaches shared parameters past `features`. Give "
                "all the tensors through which heads see the shared part, or leave `features` out."
            )


def _shown(
    tops: Sequence[Tensor], through: ThroughFeatures, views: Sequence[Sequence[Tensor]], factor: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Features and their cotangents at every tap, `[tasks, batch, features]`; several features side by side."""
    tasks = len(through.cotangents)
    if views:
        taps = [torch.cat(list(tap)) for tap in zip(*views, strict=True)]
        slopes = [
            torch.cat(
                [torch.zeros_like(like) if slope is None else slope for slope, like in zip(column, tap, strict=True)]
            )
            for column, tap in zip(zip(*through.tap_cotangents, strict=True), zip(*views, strict=True), strict=True)
        ]
        return taps, [slope / factor for slope in slopes]
    if len({top.shape[0] for top in tops if top.dim()}) != 1:
        return [], []  # no one batch to speak of
    flat = [top.flatten(1) if top.dim() > 1 else top[:, None] for top in tops]
    features = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
    rows = [
        torch.cat([(torch.zeros_like(top) if slope is None else slope).reshape(like.shape) for slope, top, like in
                   zip(slopes, tops, flat, strict=True)], dim=1)
        for slopes in through.cotangents
    ]  # fmt: skip
    return [features.expand(tasks, *features.shape)], [torch.stack(rows) / factor]

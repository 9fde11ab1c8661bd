"""One batch's losses, ready to be differentiated: what is shared is found, features are taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradhomog.errors import OptionError
from gradhomog.multitask.derivatives import Derivatives, Direct, Graph, ThroughFeatures
from gradhomog.multitask.given import Losses, Parameters, features_of, is_stacked, losses_of, parameters_of
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
    reached = Reached(until=tops, leaves=shared.values())
    bits = [reached.by(loss) for loss in losses]
    if parameters is None:
        shared = _found(losses, bits, reached, tops, is_stacked(given))
    shared_bits = reached.bits(shared.values())
    if tops:
        _check_through_features(bits, shared_bits, names)
        _check_apart(tops)
    own = [reached.tensors(own_bits & ~shared_bits) for own_bits in bits]
    graph = Graph(losses, shared, own, factor, create_graph, retain_graph)
    if not (tops and through):
        return Collected(losses, names, Direct(graph), own, [], [])
    derivatives = ThroughFeatures(graph, tops, views)
    with torch.set_grad_enabled(create_graph):
        taps, cotangents = _shown(tops, derivatives, views, factor) if shown else ([], [])
    return Collected(losses, names, derivatives, own, taps, cotangents)


def _found(
    losses: Sequence[Tensor], bits: Sequence[int], reached: Reached, tops: Sequence[Tensor], stacked: bool
) -> dict[str, Tensor]:
    """What is shared, where nobody said so: leaves that features reach, or several losses; `nn.Parameter`s, if any."""
    if tops:
        below = Reached()
        for top in tops:
            below.by(top)
        leaves = below.leaves
    elif stacked or len(losses) == 1:
        which = "were put into one tensor, of which each reaches all that any does" if stacked else "are but one"
        raise OptionError(f"the losses {which}, so what is shared cannot be found. Pass `parameters`.")
    else:
        leaves = reached.tensors(reached_by_several(bits))
    if not leaves:
        raise OptionError(
            f"the {len(losses)} losses must share a parameter; they share none. Pass the shared ones as `parameters` "
            "if they are no leaves of the graph, and check that nothing is detached."
        )
    learnt = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    return {str(index): leaf for index, leaf in enumerate(learnt or leaves)}


def _check_through_features(bits: Sequence[int], shared: int, names: tuple[str, ...] | None) -> None:
    for task, own in enumerate(bits):
        if own & shared:
            raise OptionError(
                f"the loss of task {names[task] if names else task} reaches shared parameters past `features`. Give "
                "all the tensors through which heads see the shared part, or leave `features` out."
            )


def _check_apart(tops: Sequence[Tensor]) -> None:
    if len(tops) == 1:
        return
    among = Reached(leaves=tops)
    every = among.bits(tops)
    for index, top in enumerate(tops):
        if top.grad_fn is not None and among.below(top) & every:
            raise OptionError(
                f"`features` must not be computed from one another; the one at place {index} is computed from another "
                "one, whose derivatives would count twice. Give those that the heads see first, or leave them out."
            )


def _shown(
    tops: Sequence[Tensor], through: ThroughFeatures, views: Sequence[Sequence[Tensor]], factor: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Features and their cotangents at every tap, `[tasks, batch, features]`; several features side by side."""
    tasks = len(through.cotangents)
    if views:
        taps = [torch.cat(list(tap)) for tap in zip(*views, strict=True)]
        slopes = [
            torch.cat([without_factor(slope, like, factor) for slope, like in zip(column, tap, strict=True)])
            for column, tap in zip(zip(*through.tap_cotangents, strict=True), zip(*views, strict=True), strict=True)
        ]
        return taps, slopes
    if len({top.shape[0] for top in tops if top.dim()}) != 1:
        raise OptionError(
            "a homogenizer looks at features, so that all of them must have one batch in their first dimension; got "
            f"{', '.join(str(tuple(top.shape)) for top in tops)}."
        )
    flat = [top.flatten(1) if top.dim() > 1 else top[:, None] for top in tops]
    features = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
    rows = [
        torch.cat([without_factor(slope, top, factor).reshape(like.shape) for slope, top, like in
                   zip(slopes, tops, flat, strict=True)], dim=1)
        for slopes in through.cotangents
    ]  # fmt: skip
    return [features.expand(tasks, *features.shape)], [torch.stack(rows)]


def without_factor(slope: Tensor | None, like: Tensor, factor: float) -> Tensor:
    """A cotangent without the scaler's factor, which is there because half precision has no room for what is left."""
    if slope is None:
        return torch.zeros_like(like, requires_grad=False, dtype=torch.promote_types(like.dtype, torch.float32))
    return slope.to(torch.promote_types(slope.dtype, torch.float32)) / factor

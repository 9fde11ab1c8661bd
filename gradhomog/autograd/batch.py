"""One batch's losses, ready to be differentiated: shared parameters found, features separated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradhomog.autograd.derivatives import Derivatives, Direct, LossGraph, ThroughFeatures
from gradhomog.autograd.inputs import (
    Losses,
    Parameters,
    TaskLosses,
    feature_tensors,
    shared_parameters,
    task_losses,
)
from gradhomog.autograd.reachability import Reachability, in_several
from gradhomog.autograd.task_features import TaskFeatures
from gradhomog.errors import OptionError

Features = Tensor | Sequence[Tensor] | TaskFeatures


@dataclass
class Batch:
    """The losses of one batch before any gradient is computed.

    Attributes:
        tasks: the present tasks with their losses.
        derivatives: of these losses.
        own: for each present task the leaves that are not shared.
        features, feature_grads: `[tasks, batch, features]` by tap, as `Pipeline.homogenize` takes them, or empty.
    """

    tasks: TaskLosses
    derivatives: Derivatives
    own: list[list[Tensor]]
    features: list[Tensor]
    feature_grads: list[Tensor]

    @property
    def own_gradients(self) -> list[list[tuple[Tensor, Tensor | None]]]:
        """For each task its own leaves with their gradients, after the rows or their sum were computed."""
        pairs = zip(self.own, self.derivatives.own, strict=True)
        return [list(zip(leaves, gradients, strict=True)) for leaves, gradients in pairs]


@dataclass(frozen=True)
class Trace:
    """Losses with the leaves that they depend on; nothing is differentiated yet.

    Attributes:
        tasks: the present tasks with their losses.
        shared: the shared parameters by name.
        own: for each present task its other leaves.
        tops, views: the features that the heads start from, and each present task's views of them.
    """

    tasks: TaskLosses
    shared: dict[str, Tensor]
    own: list[list[Tensor]]
    tops: list[Tensor]
    views: list[Sequence[Tensor]]


def trace(given: Losses, parameters: Parameters | None, features: Features | None) -> Trace:
    """Find the leaves that each loss depends on.

    Raises:
        OptionError: see `gradhomog.backward`.
    """
    tasks = task_losses(given)
    views = features.taps if isinstance(features, TaskFeatures) else []
    if views and len(views) != tasks.tasks:
        raise OptionError(f"`features` are views of {len(views)} tasks; there are {tasks.tasks} losses.")
    whole = features.features if isinstance(features, TaskFeatures) else features
    tops = [] if whole is None else feature_tensors(whole)
    shared = {} if parameters is None else shared_parameters(parameters)
    graph = Reachability(until=tops, leaves=shared.values())
    bits = [graph.by(loss) for loss in tasks.losses]
    if parameters is None:
        shared = _find_shared(tasks, bits, graph, tops)
    shared_bits = graph.bits(shared.values())
    if tops:
        _check_through_features(bits, shared_bits, tasks)
        _check_independent(tops)
    own = [graph.tensors(own_bits & ~shared_bits) for own_bits in bits]
    return Trace(tasks, shared, own, tops, [views[slot] for slot in tasks.slots] if views else [])


def differentiate(
    found: Trace, *, factor: float = 1.0, create_graph: bool = False, retain_graph: bool = False,
    through_features: bool = False, show_features: bool = False,
) -> Batch:  # fmt: skip
    """A batch whose gradients are computed on demand; with `through_features` those w.r.t. the features are at once.

    `show_features`: a homogenizer reads features and the gradients w.r.t. them.
    """
    graph = LossGraph(found.tasks.losses, found.shared, found.own, factor, create_graph, retain_graph)
    if not (found.tops and through_features):
        return Batch(found.tasks, Direct(graph), found.own, [], [])
    derivatives = ThroughFeatures(graph, found.tops, found.views)
    with torch.set_grad_enabled(create_graph):
        taps, grads = _feature_taps(found.tops, derivatives, found.views, factor) if show_features else ([], [])
    return Batch(found.tasks, derivatives, found.own, taps, grads)


def _find_shared(
    tasks: TaskLosses, bits: Sequence[int], graph: Reachability, tops: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The leaves below the features, or of several losses, where `parameters` is not given; `nn.Parameter`s, if any."""
    if tops:
        below = Reachability()
        for top in tops:
            below.by(top)
        leaves = below.leaves
    elif tasks.stacked or len(tasks.losses) == 1:
        which = (
            "were stacked into one tensor, of which each reaches all that any does" if tasks.stacked else "are only one"
        )
        raise OptionError(f"the losses {which}, so the shared parameters cannot be found. Pass `parameters`.")
    else:
        leaves = graph.tensors(in_several(bits))
    if not leaves:
        raise OptionError(
            f"the {len(tasks.losses)} losses must share a parameter; they share none. Pass the shared ones as "
            "`parameters` if they are no leaves of the graph, and check that nothing is detached."
        )
    learnt = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    return {str(index): leaf for index, leaf in enumerate(learnt or leaves)}


def _check_through_features(bits: Sequence[int], shared: int, tasks: TaskLosses) -> None:
    for index, own in enumerate(bits):
        if own & shared:
            raise OptionError(
                f"the loss of task {tasks.label(index)} reaches shared parameters past `features`. Give all the "
                "tensors through which heads use the shared part, or leave `features` out."
            )


def _check_independent(tops: Sequence[Tensor]) -> None:
    if len(tops) == 1:
        return
    among = Reachability(leaves=tops)
    every = among.bits(tops)
    for index, top in enumerate(tops):
        if top.grad_fn is not None and among.below(top) & every:
            raise OptionError(
                f"`features` must not be computed from one another; the one at place {index} is computed from another "
                "one, whose gradients would count twice. Give the earliest ones that the heads use, or leave them out."
            )


def _feature_taps(
    tops: Sequence[Tensor], through: ThroughFeatures, views: Sequence[Sequence[Tensor]], factor: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Features and the gradients w.r.t. them, `[tasks, batch, features]` at every tap; several are concatenated."""
    tasks = len(through.feature_grads)
    if views:
        taps = [torch.cat(list(tap)) for tap in zip(*views, strict=True)]
        grads = [
            torch.cat([without_factor(grad, like, factor) for grad, like in zip(column, tap, strict=True)])
            for column, tap in zip(zip(*through.tap_grads, strict=True), zip(*views, strict=True), strict=True)
        ]
        return taps, grads
    if len({top.shape[0] for top in tops if top.dim()}) != 1:
        raise OptionError(
            "a homogenizer reads features, so all of them must have one batch in their first dimension; got "
            f"{', '.join(str(tuple(top.shape)) for top in tops)}."
        )
    flat = [top.flatten(1) if top.dim() > 1 else top[:, None] for top in tops]
    features = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
    rows = [
        torch.cat([without_factor(grad, top, factor).reshape(like.shape) for grad, top, like in
                   zip(grads, tops, flat, strict=True)], dim=1)
        for grads in through.feature_grads
    ]  # fmt: skip
    return [features.expand(tasks, *features.shape)], [torch.stack(rows)]


def without_factor(grad: Tensor | None, like: Tensor, factor: float) -> Tensor:
    """A gradient w.r.t. features without the scaler's factor, in float32 or wider: half precision underflows."""
    if grad is None:
        return torch.zeros_like(like, requires_grad=False, dtype=torch.promote_types(like.dtype, torch.float32))
    return grad.to(torch.promote_types(grad.dtype, torch.float32)) / factor

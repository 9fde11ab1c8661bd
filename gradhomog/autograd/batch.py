"""Trace the losses of one batch to their leaves, and differentiate them w.r.t. parameters and features."""

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
from gradhomog.autograd.reachability import Reachability, in_two_or_more
from gradhomog.autograd.task_features import TaskFeatures
from gradhomog.errors import OptionError

Features = Tensor | Sequence[Tensor] | TaskFeatures


@dataclass
class Batch:
    """The losses of one batch, whose gradients are computed on demand.

    Attributes:
        tasks: the present tasks with their losses.
        derivatives: the derivatives of these losses.
        own: for each present task the leaves that are not shared.
        features, feature_grads: `[tasks, batch, features]` by tap, as in `Pipeline.homogenize`, or empty.
    """

    tasks: TaskLosses
    derivatives: Derivatives
    own: list[list[Tensor]]
    features: list[Tensor]
    feature_grads: list[Tensor]

    @property
    def own_gradients(self) -> list[list[tuple[Tensor, Tensor | None]]]:
        """For each task the leaves in `own` with their gradients; available after the rows or their sum."""
        pairs = zip(self.own, self.derivatives.own, strict=True)
        return [list(zip(leaves, gradients, strict=True)) for leaves, gradients in pairs]


@dataclass(frozen=True)
class Trace:
    """Losses with the leaves that they depend on.

    Attributes:
        tasks: the present tasks with their losses.
        shared: the shared parameters by name.
        own: for each present task the leaves that are not shared.
        tops, views: the features, and each present task's views of them.
    """

    tasks: TaskLosses
    shared: dict[str, Tensor]
    own: list[list[Tensor]]
    tops: list[Tensor]
    views: list[Sequence[Tensor]]


def trace(losses: Losses, parameters: Parameters | None, features: Features | None) -> Trace:
    """Find the leaves that each loss depends on.

    Raises:
        OptionError: see `gradhomog.backward`.
    """
    tasks = task_losses(losses)
    views = features.taps if isinstance(features, TaskFeatures) else []
    if views and len(views) != tasks.tasks:
        raise OptionError(f"`features` must have one view per loss; got {len(views)} views and {tasks.tasks} losses.")
    whole = features.features if isinstance(features, TaskFeatures) else features
    tops = [] if whole is None else feature_tensors(whole)
    shared = {} if parameters is None else shared_parameters(parameters)
    graph = Reachability(until=tops, leaves=shared.values())
    bits = [graph.reach(loss) for loss in tasks.losses]
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
    through_features: bool = False, return_features: bool = False,
) -> Batch:  # fmt: skip
    """Return a batch whose gradients are computed on demand.

    `through_features`: compute the gradients w.r.t. the features immediately, and the others from them.
    `return_features`: include the features and the gradients w.r.t. them in the batch, for homogenizers.
    """
    graph = LossGraph(found.tasks.losses, found.shared, found.own, factor, create_graph, retain_graph)
    if not (found.tops and through_features):
        return Batch(found.tasks, Direct(graph), found.own, [], [])
    derivatives = ThroughFeatures(graph, found.tops, found.views)
    with torch.set_grad_enabled(create_graph):
        taps, grads = _feature_taps(found.tops, derivatives, found.views, factor) if return_features else ([], [])
    return Batch(found.tasks, derivatives, found.own, taps, grads)


def _find_shared(
    tasks: TaskLosses, bits: Sequence[int], graph: Reachability, tops: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the leaves of the features, or else of two or more losses; only `nn.Parameter`s if there are any."""
    if tops:
        below = Reachability()
        for top in tops:
            below.reach(top)
        leaves = below.leaves
    elif tasks.stacked or len(tasks.losses) == 1:
        reason = "the losses were stacked into one tensor" if tasks.stacked else "there is only one loss"
        raise OptionError(f"`parameters` is required, because {reason}; the shared parameters cannot be inferred.")
    else:
        leaves = graph.tensors(in_two_or_more(bits))
    if not leaves:
        raise OptionError(
            f"the {len(tasks.losses)} losses must share a parameter; they share none. Pass the shared tensors as "
            "`parameters` if they are not leaves of the graph, and check that no output is detached."
        )
    parameters = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    return {str(index): leaf for index, leaf in enumerate(parameters or leaves)}


def _check_through_features(bits: Sequence[int], shared: int, tasks: TaskLosses) -> None:
    for index, own in enumerate(bits):
        if own & shared:
            raise OptionError(
                f"the loss of task {tasks.label(index)} must depend on shared parameters only through `features`; it "
                "depends on them by another path. Pass all outputs of the shared part that heads use, or omit "
                "`features`."
            )


def _check_independent(tops: Sequence[Tensor]) -> None:
    if len(tops) == 1:
        return
    among = Reachability(leaves=tops)
    every = among.bits(tops)
    for index, top in enumerate(tops):
        if top.grad_fn is not None and among.below(top) & every:
            raise OptionError(
                f"`features` must not be computed from one another; features[{index}] is computed from another entry, "
                "whose gradients would count twice. Pass only the earliest tensors that the heads use, or omit "
                "`features`."
            )


def _feature_taps(
    tops: Sequence[Tensor], through: ThroughFeatures, views: Sequence[Sequence[Tensor]], factor: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Return features and gradients w.r.t. them, `[tasks, batch, features]` at every tap; several are concatenated."""
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
            "a homogenizer reads features, so all of them must have the same first dimension, the batch; got "
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
    """Divide a gradient w.r.t. features by the scaler's factor, in float32 or wider, as half precision underflows."""
    if grad is None:
        return torch.zeros_like(like, requires_grad=False, dtype=torch.promote_types(like.dtype, torch.float32))
    return grad.to(torch.promote_types(grad.dtype, torch.float32)) / factor

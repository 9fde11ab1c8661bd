"""Find the leaves that the losses of one batch depend on; compute gradients w.r.t. parameters and features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.autograd.custom_functions import check_outputs_apart, compiled_functions
from gradhomog.autograd.derivatives import Derivatives, DirectDerivatives, FeatureDerivatives, LossGraph
from gradhomog.autograd.distributed.fully_sharded_passes import FullyShardedDerivatives
from gradhomog.autograd.inputs import (
    Losses,
    Parameters,
    TaskLosses,
    feature_tensors,
    shared_parameters,
    task_losses,
)
from gradhomog.autograd.reachability import Reachability, bits_in_several
from gradhomog.autograd.task_features import TaskFeatures
from gradhomog.errors import OptionError
from gradhomog.ranks.dtensors import is_dtensor, leaves_not_sharded

Features = Tensor | Sequence[Tensor] | TaskFeatures


@dataclass
class Batch:
    """The losses of one batch, whose gradients are computed on demand.

    Attributes:
        tasks: the present tasks with their losses.
        derivatives: the derivatives of these losses.
        unshared_leaves: for each present task the leaves that are not shared.
        features, feature_grads: `[tasks, batch, features]` before the first `transform` stage and after each, as in
            `Pipeline.homogenize`, or empty.
    """

    tasks: TaskLosses
    derivatives: Derivatives
    unshared_leaves: list[list[Tensor]]
    features: list[Tensor]
    feature_grads: list[Tensor]

    @property
    def unshared_gradients(self) -> list[list[tuple[Tensor, Tensor | None]]]:
        """For each task the unshared leaves with their gradients; available after the rows or their sum."""
        pairs = zip(self.unshared_leaves, self.derivatives.unshared_gradients, strict=True)
        return [list(zip(leaves, gradients, strict=True)) for leaves, gradients in pairs]


@dataclass(frozen=True)
class LossLeaves:
    """Losses with the leaves that they depend on.

    Attributes:
        tasks: the present tasks with their losses.
        shared: the shared parameters by name.
        unshared_leaves: for each present task the leaves that are not shared.
        features: the features.
        stage_features: for each present task the features before the first `transform` stage and after each; empty
            unless `features` was a `TaskFeatures`.
        use_shared: True if any of the losses that were passed depends on a shared parameter, or if there are features.
        compiled: the nodes of compiled functions in the graph.
        nodes: all nodes of the graph.
        sharded: True if `fully_shard` splits the parameters over ranks. The graph then has other leaves.
    """

    tasks: TaskLosses
    shared: dict[str, Tensor]
    unshared_leaves: list[list[Tensor]]
    features: list[Tensor]
    stage_features: list[Sequence[Tensor]]
    use_shared: bool
    compiled: list[Any]
    nodes: list[Any]
    sharded: bool = False

    def select(self, indices: Sequence[int]) -> LossLeaves:
        """Return the losses of some of the present tasks."""
        tasks = self.tasks
        losses, slots = [tasks.losses[index] for index in indices], tuple(tasks.slots[index] for index in indices)
        return replace(
            self,
            tasks=replace(tasks, losses=losses, slots=slots),
            unshared_leaves=[self.unshared_leaves[index] for index in indices],
            stage_features=[self.stage_features[index] for index in indices] if self.stage_features else [],
        )

    def without_inputs(self) -> LossLeaves:
        """Return the losses without leaves that are inputs of the model, if it has parameters.

        Across ranks, collocation points and other inputs that require grad belong to the examples of one rank, but
        gradients of heads are summed over the ranks.
        """
        leaves = [leaf for leaves in (self.shared.values(), *self.unshared_leaves) for leaf in leaves]
        if not any(isinstance(leaf, nn.Parameter) for leaf in leaves):
            return self
        heads: list[list[Tensor]] = [
            [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)] for leaves in self.unshared_leaves
        ]
        return replace(self, unshared_leaves=heads)


def find_leaves(
    losses: Losses, parameters: Parameters | None, features: Features | None, graph: bool = True
) -> LossLeaves:
    """Find the leaves that each loss depends on; none without `graph`, for losses that are only evaluated.

    Raises:
        OptionError: see `gradhomog.backward`.
    """
    tasks = task_losses(losses, graph)
    views = features.stage_features if isinstance(features, TaskFeatures) else []
    if views and len(views) != tasks.tasks:
        raise OptionError(f"`features` must have one view per loss; got {len(views)} views and {tasks.tasks} losses.")
    whole = features.features if isinstance(features, TaskFeatures) else features
    tensors = [] if whole is None else feature_tensors(whole, graph)
    try:
        shared = {} if parameters is None else shared_parameters(parameters, graph)
    except OptionError:
        _check_not_flattened(_graph_of(tasks.losses))  # FSDP1 can leave a module without parameters
        raise
    if not graph:
        return LossLeaves(tasks, shared, [], tensors, [], False, [], [])
    if any(is_dtensor(parameter) for parameter in shared.values()):
        return _sharded_leaves(tasks, shared, tensors)
    reached = Reachability(until=tensors, leaves=shared.values())
    bits = [reached.leaf_bits(loss) for loss in tasks.losses]
    _check_not_flattened(reached)
    compiled, nodes = compiled_functions(reached), reached.nodes
    if tensors:
        before_features = _graph_of(tensors, leaves=shared.values())
        compiled += compiled_functions(before_features)
        nodes += before_features.nodes
    if parameters is None:
        shared = _find_shared(tasks, bits, reached, tensors)
    _check_one_device(shared)
    shared_bits = reached.bits_of(shared.values())
    if tensors:
        _check_through_features(bits, shared_bits, tasks)
        _check_independent(tensors)
    unshared = [sorted(reached.tensors(loss_bits & ~shared_bits), key=shape_of) for loss_bits in bits]
    stage_features = [views[slot] for slot in tasks.slots] if views else []
    use_shared = bool(tensors) or any(loss_bits & shared_bits for loss_bits in bits)
    return LossLeaves(tasks, shared, unshared, tensors, stage_features, use_shared, compiled, nodes)


def shape_of(leaf: Tensor) -> tuple[int, ...]:
    """Return the shape, by which a head's leaves are sorted.

    Their order in the graph can differ between ranks: `Linear` adds its bias in another place for some input shapes.
    """
    return tuple(leaf.shape)


def differentiate(
    loss_leaves: LossLeaves, *, factor: float = 1.0, create_graph: bool = False, retain_graph: bool = False,
    through_features: bool = False, return_features: bool = False, loss_weights: Sequence[float] = (),
) -> Batch:  # fmt: skip
    """Return a batch whose gradients are computed on demand.

    `through_features`: compute the gradients w.r.t. the features immediately, and the others from them.
    `return_features`: include the features and the gradients w.r.t. them in the batch, for homogenizers.
    `loss_weights`: see `LossGraph`; across ranks only.
    """
    tasks, unshared = loss_leaves.tasks, loss_leaves.unshared_leaves
    if create_graph and loss_leaves.compiled:
        raise OptionError(
            "create_graph=True requires second derivatives, but a part of the graph was computed by a torch.compile'd "
            "function, which has none. Compute the losses by the original module."
        )
    graph = LossGraph(
        tasks.losses, loss_leaves.shared, unshared, factor, create_graph, retain_graph, loss_leaves.compiled,
        loss_weights,
    )  # fmt: skip
    if loss_leaves.sharded:
        return Batch(tasks, FullyShardedDerivatives(graph), unshared, [], [])
    if not (loss_leaves.features and through_features):
        return Batch(tasks, DirectDerivatives(graph), unshared, [], [])
    derivatives = FeatureDerivatives(graph, loss_leaves.features, loss_leaves.stage_features)
    features, grads = list[Tensor](), list[Tensor]()
    if return_features:
        with torch.set_grad_enabled(create_graph):
            features, grads = _features_of_stages(derivatives, loss_leaves.stage_features, factor)
    return Batch(tasks, derivatives, unshared, features, grads)


def _find_shared(
    tasks: TaskLosses, bits: Sequence[int], graph: Reachability, features: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the leaves of the features, or else of two or more losses; only `nn.Parameter`s if there are any."""
    if features:
        leaves = _graph_of(features).leaves
    elif tasks.stacked or len(tasks.losses) == 1:
        one = "there is only one loss" if tasks.tasks == 1 else "only one loss is not None in this batch"
        reason = "the losses were stacked into one tensor" if tasks.stacked else one
        raise OptionError(f"`parameters` is required, because {reason}; the shared parameters cannot be inferred.")
    else:
        check_outputs_apart(graph)
        leaves = graph.tensors(bits_in_several(bits))
    if not leaves:
        raise OptionError(
            f"the {len(tasks.losses)} losses must share a parameter; they share none. Pass the shared tensors as "
            "`parameters` if they are not leaves of the graph, and check that no output is detached."
        )
    parameters = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    return {str(index): leaf for index, leaf in enumerate(parameters or leaves)}


def _sharded_leaves(tasks: TaskLosses, shared: dict[str, Tensor], features: Sequence[Tensor]) -> LossLeaves:
    """Return losses of a fully sharded model, whose graph has the gathered parameters as leaves, and heads that are not
    sharded."""
    if features:
        raise OptionError("`features` must be omitted for parameters that are sharded by fully_shard.")
    graph = Reachability()
    bits = [graph.leaf_bits(loss) for loss in tasks.losses]
    heads = graph.bits_of(leaves_not_sharded(graph.leaves))
    unshared = [sorted(graph.tensors(loss_bits & heads), key=shape_of) for loss_bits in bits]
    return LossLeaves(tasks, shared, unshared, [], [], True, compiled_functions(graph), graph.nodes, sharded=True)


def _check_not_flattened(graph: Reachability) -> None:
    if any(getattr(leaf, "_is_flat_param", False) for leaf in graph.leaves):
        raise OptionError(
            "FullyShardedDataParallel (FSDP1) is not supported: its hooks do not average the gradient of each task. "
            "Use torch.distributed.fsdp.fully_shard (FSDP2) or DistributedDataParallel; see docs/guide/ranks.md."
        )


def _graph_of(tensors: Sequence[Tensor], leaves: Iterable[Tensor] = ()) -> Reachability:
    graph = Reachability(leaves=leaves)
    for tensor in tensors:
        graph.leaf_bits(tensor)
    return graph


def _check_one_device(shared: Mapping[str, Tensor]) -> None:
    devices: dict[torch.device, str] = {}
    for name, value in shared.items():
        devices.setdefault(value.device, name)
    if len(devices) > 1:
        found = " and ".join(f"{name!r} on {device}" for device, name in list(devices.items())[:2])
        raise OptionError(
            f"the shared parameters must be on one device; got {found}. For a model that is split over devices, pass "
            "the parameters of one of them as `parameters`; the others receive the sum of the gradients."
        )


def _check_through_features(bits: Sequence[int], shared: int, tasks: TaskLosses) -> None:
    for index, loss_bits in enumerate(bits):
        if loss_bits & shared:
            raise OptionError(
                f"the loss of task {tasks.label(index)} must depend on shared parameters only through `features`; it "
                "depends on them by another path. Pass all outputs of the shared part that heads use, or omit "
                "`features`."
            )


def _check_independent(features: Sequence[Tensor]) -> None:
    if len(features) == 1:
        return
    graph = Reachability(leaves=features)
    feature_bits = graph.bits_of(features)
    for index, feature in enumerate(features):
        if feature.grad_fn is not None and graph.leaf_bits_beyond(feature) & feature_bits:
            raise OptionError(
                "no entry of `features` may be computed from another entry, because gradients would be counted twice; "
                f"features[{index}] depends on another entry. Pass only the earliest tensors that the heads use, or "
                "omit `features`."
            )


def _features_of_stages(
    derivatives: FeatureDerivatives, stage_features: Sequence[Sequence[Tensor]], factor: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the features before and after each `transform` stage, and the gradients w.r.t. them.

    Both are `[tasks, batch, features]`; several feature tensors are concatenated.
    """
    if stage_features:
        columns = list(zip(*stage_features, strict=True))
        grad_columns = zip(*derivatives.stage_feature_grads, strict=True)
        return [torch.cat(column) for column in columns], [
            torch.cat([without_factor(grad, like, factor) for grad, like in zip(grads, column, strict=True)])
            for grads, column in zip(grad_columns, columns, strict=True)
        ]
    features = derivatives.features
    if len({feature.shape[0] for feature in features if feature.dim()}) != 1:
        raise OptionError(
            "a homogenizer reads features, so all of them must have the same first dimension, the batch; got "
            f"{', '.join(str(tuple(feature.shape)) for feature in features)}."
        )
    flat = [feature.flatten(1) if feature.dim() > 1 else feature[:, None] for feature in features]
    combined = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
    rows = [
        torch.cat([without_factor(grad, feature, factor).reshape(like.shape) for grad, feature, like in
                   zip(grads, features, flat, strict=True)], dim=1)
        for grads in derivatives.feature_grads
    ]  # fmt: skip
    return [combined.expand(len(rows), *combined.shape)], [torch.stack(rows)]


def without_factor(grad: Tensor | None, like: Tensor, factor: float) -> Tensor:
    """Divide a gradient w.r.t. features by the scaler's factor, in float32 or wider, as half precision underflows."""
    if grad is None:
        return torch.zeros_like(like, requires_grad=False, dtype=torch.promote_types(like.dtype, torch.float32))
    return grad.to(torch.promote_types(grad.dtype, torch.float32)) / factor

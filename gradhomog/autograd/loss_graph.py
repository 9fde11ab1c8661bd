"""The losses of one step with the leaves that they depend on, found by traversing the autograd graph."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

from gradhomog.autograd import inputs
from gradhomog.autograd.backward_passes import BackwardPasses
from gradhomog.errors import OptionError
from gradhomog.ranks.dtensors import any_dtensor, leaves_not_sharded

Edge = tuple[Any, int]
"""A node of the autograd graph, and the number of one of its inputs in the backward pass."""

SHAPE = operator.attrgetter("shape")
"""The order of a head's leaves. That in the graph can differ between ranks: `Linear` adds its bias in another place for
some input shapes."""


PARTITIONED = {"_is_flat_param": "FullyShardedDataParallel (FSDP1)", "ds_id": "DeepSpeed ZeRO-3"}
"""Attributes that only parameters of an engine have which stores parts of them."""


@dataclass(frozen=True)
class LossGraph:
    """The losses of one step, with the leaves that they depend on.

    Attributes:
        tasks: the present tasks with their losses.
        shared: the shared parameters by name.
        unshared_leaves: for each present task the leaves that are not shared.
        features: the features.
        stage_features: for each present task the features before the first `transform` stage and after each; empty
            unless `features` was a `TaskFeatures`.
        use_shared: True if any of the losses that were passed depends on a shared parameter, or if there are features.
        passes: the backward passes through the graph.
        nodes: all nodes of the graph.
        sharded: True if `fully_shard` splits the parameters over ranks. The graph then has other leaves.
    """

    tasks: inputs.TaskLosses
    shared: Mapping[str, Tensor]
    unshared_leaves: Sequence[Sequence[Tensor]]
    features: Sequence[Tensor] = ()
    stage_features: Sequence[Sequence[Tensor]] = ()
    use_shared: bool = True
    passes: BackwardPasses = field(default_factory=BackwardPasses)
    nodes: Sequence[Any] = ()
    sharded: bool = False

    def select(self, indices: Sequence[int]) -> LossGraph:
        """Return the losses of some of the present tasks."""
        tasks, heads = self.tasks, [self.unshared_leaves[index] for index in indices]
        losses, slots = [tasks.losses[index] for index in indices], tuple(tasks.slots[index] for index in indices)
        stages = [self.stage_features[index] for index in indices] if self.stage_features else []
        chosen = replace(tasks, losses=losses, slots=slots)
        return replace(self, tasks=chosen, unshared_leaves=heads, stage_features=stages)

    def without_inputs(self) -> LossGraph:
        """Return the losses without leaves that are inputs of the model, if it has parameters.

        Across ranks, collocation points and other inputs that require grad belong to the examples of one rank, but
        gradients of heads are summed over the ranks.
        """
        leaves = [leaf for leaves in (self.shared.values(), *self.unshared_leaves) for leaf in leaves]
        if not any(isinstance(leaf, nn.Parameter) for leaf in leaves):
            return self
        heads = [[leaf for leaf in leaves if isinstance(leaf, nn.Parameter)] for leaves in self.unshared_leaves]
        return replace(self, unshared_leaves=heads)


def find_graph(
    losses: inputs.Losses, parameters: inputs.Parameters | None, features: inputs.Features | None
) -> LossGraph:
    """Find the leaves that each loss depends on.

    Raises:
        OptionError: see `gradhomog.backward`.
    """
    tasks = inputs.task_losses(losses)
    tensors, views = _features(features, tasks)
    try:
        shared = {} if parameters is None else inputs.shared_parameters(parameters)
    except OptionError:
        _check_not_partitioned(Reachability(tasks.losses))  # FSDP1 can leave a module without parameters
        raise
    sharded = any_dtensor(shared.values())
    if sharded and tensors:
        raise OptionError("`features` must be omitted for parameters that are sharded by fully_shard.")
    reached = Reachability(tasks.losses, until=tensors, leaves=shared.values())
    graphs = [reached, *([Reachability(tensors, leaves=shared.values())] if tensors else [])]
    _check_not_partitioned(reached)
    compiled = [node for part in graphs for node in compiled_functions(part)]
    if parameters is None:
        shared = _find_shared(tasks, reached, graphs[-1].leaves if tensors else None)
    _check_one_device(shared)
    shared_bits = reached.bits_of(shared.values())
    if tensors:
        _check_through_features(reached.bits, shared_bits, tasks)
        _check_independent(tensors)
    # The leaves of a sharded model are its gathered parameters, and heads that are not sharded.
    heads = reached.bits_of(leaves_not_sharded(reached.leaves)) if sharded else ~shared_bits
    unshared = [sorted(reached.tensors(loss_bits & heads), key=SHAPE) for loss_bits in reached.bits]
    use_shared = sharded or bool(tensors) or any(loss_bits & shared_bits for loss_bits in reached.bits)
    nodes = [node for part in graphs for node in part.nodes]
    return LossGraph(
        tasks, shared, unshared, tensors, views, use_shared, BackwardPasses(nodes, compiled), nodes, sharded
    )


def _features(
    features: inputs.Features | None, tasks: inputs.TaskLosses
) -> tuple[list[Tensor], list[Sequence[Tensor]]]:
    """Return the feature tensors, and for each present task the features at the `transform` stages."""
    if features is None:
        return [], []
    if not isinstance(features, inputs.TaskFeatures):
        return inputs.feature_tensors(features), []
    views = features.stage_features
    if views and len(views) != tasks.tasks:
        raise OptionError(f"`features` must have one view per loss; got {len(views)} views and {tasks.tasks} losses.")
    return inputs.feature_tensors(features.features), [views[slot] for slot in tasks.slots] if views else []


def _find_shared(
    tasks: inputs.TaskLosses, reached: Reachability, of_features: list[Tensor] | None
) -> dict[str, Tensor]:
    """Return the leaves of the features, or else of two or more losses; only `nn.Parameter`s if there are any."""
    if of_features is not None:
        leaves = of_features
    elif tasks.stacked or len(tasks.losses) == 1:
        one = "there is only one loss" if tasks.tasks == 1 else "only one loss of this batch has a graph"
        reason = "the losses were stacked into one tensor" if tasks.stacked else one
        raise OptionError(f"`parameters` is required, because {reason}; the shared parameters cannot be inferred.")
    else:
        check_outputs_apart(reached)
        leaves = reached.tensors(bits_in_several(reached.bits))
    if not leaves:
        raise OptionError(
            f"the {len(tasks.losses)} losses must share a parameter; they share none. Pass the shared tensors as "
            "`parameters` if they are not leaves of the graph, and check that no output is detached."
        )
    parameters = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    return {str(index): leaf for index, leaf in enumerate(parameters or leaves)}


def _check_not_partitioned(graph: Reachability) -> None:
    for mark, engine in PARTITIONED.items():
        if any(hasattr(leaf, mark) for leaf in graph.leaves):
            raise OptionError(
                f"{engine} is not supported: it partitions parameters, and its hooks do not average the gradient of "
                "each task. Use torch.distributed.fsdp.fully_shard (FSDP2) or DistributedDataParallel; or weights from "
                "losses (static, uw), which need one backward pass: docs/guide/ranks.md#weights-from-losses."
            )


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


def _check_through_features(bits: Sequence[int], shared: int, tasks: inputs.TaskLosses) -> None:
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
    graph = Reachability((), leaves=features)
    feature_bits = graph.bits_of(features)
    for index, feature in enumerate(features):
        if feature.grad_fn is not None and graph.leaf_bits_beyond(feature) & feature_bits:
            raise OptionError(
                "no entry of `features` may be computed from another entry, because gradients would be counted twice; "
                f"features[{index}] depends on another entry. Pass only the earliest tensors that the heads use, or "
                "omit `features`."
            )


AccumulateGrad: Any = type(get_gradient_edge(torch.zeros((), requires_grad=True)).node)
"""The type of the node of a leaf."""


class Reachability:
    """The leaves that tensors depend on; each node of their common graph is visited once.

    Args:
        tensors: the tensors, such as losses.
        until: tensors at which the traversal stops, such as features: their leaves are not included.
        leaves: tensors that count as leaves although they have a graph, such as adapted parameters.

    Attributes:
        leaves: the leaves, in the order in which they were found.
        bits: for each tensor the leaves that it depends on, as bits (bit k is `leaves[k]`).
        nodes: for each visited node, also those of leaves (`AccumulateGrad`), the leaves that it leads to, as bits.
    """

    def __init__(
        self, tensors: Iterable[Tensor], *, until: Iterable[Tensor] = (), leaves: Iterable[Tensor] = ()
    ) -> None:
        self.leaves: list[Tensor] = []
        self._roots: list[Edge] = []
        self._bit: dict[int, int] = {}
        # A set of leaves is stored as the bits of an integer, so that a union is one bitwise operation.
        self.nodes: dict[Any, int] = {}
        # A node may have several outputs: the key is the node and the index of the output.
        self._stops: dict[Edge, int] = {}
        for tensor in until:
            if tensor.grad_fn is None:
                self._bit[id(tensor)] = 0
            else:
                self._stops[tensor.grad_fn, tensor.output_nr] = 0
        for tensor in leaves:
            if tensor.grad_fn is not None:
                self._stops[tensor.grad_fn, tensor.output_nr] = self._leaf(tensor)
        self.bits: list[int] = []
        for tensor in tensors:
            if tensor.grad_fn is None:
                bits = self._leaf(tensor) if tensor.requires_grad else 0
            else:
                stop = self._stops.get((tensor.grad_fn, tensor.output_nr))
                bits = self.leaf_bits_beyond(tensor) if stop is None else stop
            self.bits.append(bits)

    def leaf_bits_beyond(self, tensor: Tensor) -> int:
        """Return the leaves that a tensor depends on, as bits, even if the tensor is in `until`."""
        found, stops, root = self.nodes, self._stops, tensor.grad_fn
        assert root is not None
        stack: list[tuple[Any, Any]] = [(root, root.next_functions)]
        self._roots.append((root, tensor.output_nr))
        while stack:
            node, edges = stack[-1]
            bits, complete = 0, True
            for edge in edges:
                child = edge[0]
                if child is None:
                    continue
                child_bits = stops.get(edge) if stops else None
                child_bits = found.get(child) if child_bits is None else child_bits
                if child_bits is None:
                    stack.append((child, child.next_functions))
                    complete = False
                else:
                    bits |= child_bits
            if not complete:
                continue
            if type(node) is AccumulateGrad:
                bits = self._leaf(node.variable)
            found[node] = bits
            stack.pop()
        return found[root]

    @functools.cached_property
    def functions(self) -> dict[Any, set[int]]:
        """The visited nodes of Python autograd functions (checkpoints, compiled functions), with the indices of the
        outputs through which they were reached."""
        found: dict[Any, set[int]] = {node: set() for node in self.nodes if isinstance(node, BackwardCFunction)}
        if found:
            edges = (edge for node in self.nodes for edge in node.next_functions if edge not in self._stops)
            for node, output in itertools.chain(self._roots, edges):
                if node in found:
                    found[node].add(output)
        return found

    def tensors(self, bits: int) -> list[Tensor]:
        """Return the leaves of a set of bits, in order."""
        found = []
        while bits:
            lowest = bits & -bits
            found.append(self.leaves[lowest.bit_length() - 1])
            bits ^= lowest
        return found

    def bits_of(self, tensors: Iterable[Tensor]) -> int:
        """Return the bits of those tensors that are in `leaves`."""
        bits = 0
        for tensor in tensors:
            bits |= self._bit.get(id(tensor), 0)
        return bits

    def _leaf(self, tensor: Tensor) -> int:
        if id(tensor) not in self._bit:
            self._bit[id(tensor)] = 1 << len(self.leaves)
            self.leaves.append(tensor)
        return self._bit[id(tensor)]


def bits_in_several(bit_sets: Sequence[int]) -> int:
    """Return the bits that are in two or more sets."""
    once = twice = 0
    for bits in bit_sets:
        twice |= once & bits
        once |= bits
    return twice


def compiled_functions(graph: Reachability) -> list[Any]:
    """Return the nodes of functions that AOTAutograd compiled.

    Raises:
        OptionError: the graph contains a reentrant checkpoint.
    """
    names = {node: node.name() for node in graph.functions}
    if "CheckpointFunctionBackward" in names.values():
        # `torch.autograd.grad` raises only if the checkpoint lies between a loss and a parameter outside it. Otherwise
        # the gradients of the parameters within the checkpoint would be missing, without an error.
        raise OptionError(
            "the losses were computed with a reentrant checkpoint, whose parameters are not part of the autograd "
            "graph. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False); in Transformers "
            "gradient_checkpointing_kwargs={'use_reentrant': False}. Nothing was written."
        )
    return [node for node, name in names.items() if name == "CompiledFunctionBackward"]


def check_outputs_apart(graph: Reachability) -> None:
    """Raise if losses were computed from several outputs of a compiled function, so that their leaves are unknown.

    Raises:
        OptionError.
    """
    if any(len(graph.functions[node]) > 1 for node in compiled_functions(graph)):
        raise OptionError(
            "`parameters` is required, because losses depend on several outputs of one torch.compile'd function; the "
            "graph does not contain which of its parameters each output depends on. Pass the shared module as "
            "`parameters`."
        )

"""Find the leaves that a loss depends on, by traversing its autograd graph, and the functions that hide parts of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

from gradhomog.errors import OptionError

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
        functions: the visited nodes of Python autograd functions (checkpoints, compiled functions), with the indices of
            the outputs through which they were reached.
    """

    def __init__(
        self, tensors: Iterable[Tensor], *, until: Iterable[Tensor] = (), leaves: Iterable[Tensor] = ()
    ) -> None:
        self.leaves: list[Tensor] = []
        self.functions: dict[Any, set[int]] = {}
        self._bit: dict[int, int] = {}
        # A set of leaves is stored as the bits of an integer, so that a union is one bitwise operation.
        self.nodes: dict[Any, int] = {}
        # A node may have several outputs: the key is the node and the index of the output.
        self._stops: dict[tuple[Any, int], int] = {}
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
        if isinstance(root, BackwardCFunction):
            self.functions.setdefault(root, set()).add(tensor.output_nr)
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
                    continue
                bits |= child_bits
                if isinstance(child, BackwardCFunction) and edge not in stops:
                    self.functions.setdefault(child, set()).add(edge[1])
            if not complete:
                continue
            if type(node) is AccumulateGrad:
                bits = self._leaf(node.variable)
            found[node] = bits
            stack.pop()
        return found[root]

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

"""Which leaves a loss reaches in the graph that computed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor


class Reached:
    """The leaves that tensors reach, walking each node of their common graph once.

    Args:
        until: tensors beyond which nobody walks, such as features: their own leaves are not told.
        leaves: tensors that count as leaves though they have a graph of their own, such as adapted parameters.
    """

    def __init__(self, until: Iterable[Tensor] = (), leaves: Iterable[Tensor] = ()) -> None:
        self.leaves: list[Tensor] = []
        self._bit: dict[int, int] = {}
        # A node's leaves are the bits of an integer: uniting two sets costs as much as an addition.
        self._found: dict[Any, int] = {}
        # One of several outputs of a node is no other: the edge is told by both.
        self._stops: dict[tuple[Any, int], int] = {}
        for tensor in until:
            if tensor.grad_fn is None:
                self._bit[id(tensor)] = 0
            else:
                self._stops[tensor.grad_fn, tensor.output_nr] = 0
        for tensor in leaves:
            if tensor.grad_fn is not None:
                self._stops[tensor.grad_fn, tensor.output_nr] = self._leaf(tensor)

    def by(self, tensor: Tensor) -> int:
        """The leaves that a tensor reaches, as bits; bit k is `leaves[k]`."""
        if tensor.grad_fn is None:
            return self._leaf(tensor) if tensor.requires_grad else 0
        stop = self._stops.get((tensor.grad_fn, tensor.output_nr))
        return self.below(tensor) if stop is None else stop

    def below(self, tensor: Tensor) -> int:
        """The same, although it may be one of those beyond which nobody walks."""
        found = self._found
        stack: list[Any] = [tensor.grad_fn]
        while stack:
            node = stack[-1]
            if node in found:
                stack.pop()
                continue
            edges = [edge for edge in node.next_functions if edge[0] is not None]
            if waiting := [edge[0] for edge in edges if edge not in self._stops and edge[0] not in found]:
                stack.extend(waiting)
                continue
            # Not every node that has a `variable` is a leaf's: a user's function may call so what it keeps.
            bits = self._leaf(node.variable) if node.name().endswith("AccumulateGrad") else 0
            for edge in edges:
                stop = self._stops.get(edge)
                bits |= found[edge[0]] if stop is None else stop
            found[node] = bits
            stack.pop()
        return found[tensor.grad_fn]

    def tensors(self, bits: int) -> list[Tensor]:
        """The leaves that some bits stand for."""
        return [leaf for index, leaf in enumerate(self.leaves) if bits >> index & 1]

    def bits(self, tensors: Iterable[Tensor]) -> int:
        """The bits of those tensors that have been reached as leaves."""
        bits = 0
        for tensor in tensors:
            bits |= self._bit.get(id(tensor), 0)
        return bits

    def _leaf(self, tensor: Tensor) -> int:
        if id(tensor) not in self._bit:
            self._bit[id(tensor)] = 1 << len(self.leaves)
            self.leaves.append(tensor)
        return self._bit[id(tensor)]


def reached_by_several(reach: Sequence[int]) -> int:
    """The bits that occur in two or more sets."""
    once = twice = 0
    for bits in reach:
        twice |= once & bits
        once |= bits
    return twice

"""Which leaves a loss reaches in the graph that computed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor


class Reached:
    """The leaves that tensors reach, walking each node of their common graph once.

    Args:
        until: tensors beyond which nobody walks, such as features: their own leaves are not told.
    """

    def __init__(self, until: Iterable[Tensor] = ()) -> None:
        self.leaves: list[Tensor] = []
        self._bit: dict[int, int] = {}
        # A node's leaves are the bits of an integer: uniting two sets costs as much as an addition.
        self._found: dict[Any, int] = {}
        for tensor in until:
            if tensor.grad_fn is None:
                self._bit[id(tensor)] = 0
            else:
                self._found[tensor.grad_fn] = 0

    def by(self, tensor: Tensor) -> int:
        """The leaves that a tensor reaches, as bits; bit k is `leaves[k]`."""
        if tensor.grad_fn is None:
            return self._leaf(tensor) if tensor.requires_grad else 0
        found, stack = self._found, [tensor.grad_fn]
        while stack:
            node = stack[-1]
            if node in found:
                stack.pop()
                continue
            below = [following for following, _ in node.next_functions if following is not None]
            if waiting := [following for following in below if following not in found]:
                stack.extend(waiting)
                continue
            variable = getattr(node, "variable", None)
            bits = 0 if variable is None else self._leaf(variable)
            for following in below:
                bits |= found[following]
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

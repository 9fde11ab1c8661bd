"""Find and remove hooks that a plugin left on a network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# nn.Module has no public list of its hooks; the names of these four dicts are unchanged since PyTorch 2.0.


class Hooks:
    """The hooks on a network and its submodules at the time of construction."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._known = {(id(table), handle) for table, handle in _hooks(network)}

    def remove_new(self) -> int:
        """Remove the hooks that were registered after construction; return their number."""
        new = [(table, handle) for table, handle in _hooks(self._network) if (id(table), handle) not in self._known]
        for table, handle in new:
            del table[handle]
        return len(new)


def _hooks(network: nn.Module) -> Iterator[tuple[dict[int, Any], int]]:
    for module in network.modules():
        for name in _TABLES:
            table: dict[int, Any] = getattr(module, name)
            yield from ((table, handle) for handle in table)

"""What an object holds, and objects that it holds, by the path to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, TypeVar

import torch
from torch import Tensor

Kind = TypeVar("Kind")

# Held by everybody, or without anything within that could be of interest.
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, Tensor, torch.Generator)


def held(owner: object, kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    """All objects of a kind in the attributes of `owner`, in containers and in other objects' attributes.

    Each comes once, with its path from the owner, such as `window[2]`. Closures are not looked into.
    """
    seen: set[int] = set()

    def search(value: Any, path: str) -> Iterator[tuple[str, Kind]]:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, kind):
            yield path.lstrip("."), value
        if isinstance(value, _LEAVES):
            return
        if isinstance(value, Mapping):
            parts = [(f"{path}[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, (Sequence, Set)) or type(value).__name__ == "deque":
            parts = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        else:
            parts = []
        parts += [(f"{path}.{name}", item) for name, item in getattr(value, "__dict__", {}).items()]
        for where, item in parts:
            yield from search(item, where)

    yield from search(owner, "")

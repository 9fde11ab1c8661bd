"""Buffers of a learner's own, under the dotted names of the network's buffers that they stand in for."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def buffers(tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module whose buffers have these names, dots included; as `mirror` does for parameters."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        place = root
        for part in path:
            if part not in dict(place.named_children()):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.register_buffer(last, tensor)
    return root

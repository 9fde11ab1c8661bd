"""A tree of parameters with the names of others: one rate for each weight, under the weight's own name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def mirror(tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module whose parameters have the names (dots included) and values of some tensors.

    A `nn.ParameterDict` takes no names with dots, and these names are what users see and choose by.
    """
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        place = root
        for part in path:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.register_parameter(last, nn.Parameter(tensor.detach().clone()))
    return root

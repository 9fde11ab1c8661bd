"""A tree of parameters or buffers with the names of others: one rate for each weight, under the weight's own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn


def mirror(tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module whose parameters have the names (dots included) and values of some tensors.

    A `nn.ParameterDict` takes no names with dots, and these names are what users see and choose by.
    """
    return _tree(
        tensors, lambda place, name, tensor: place.register_parameter(name, nn.Parameter(tensor.detach().clone()))
    )


def mirror_buffers(tensors: Mapping[str, Tensor]) -> nn.Module:
    """The same with buffers: what is kept and saved, but not learnt."""
    return _tree(tensors, lambda place, name, tensor: place.register_buffer(name, tensor))


def _tree(tensors: Mapping[str, Tensor], register: Callable[[nn.Module, str, Tensor], None]) -> nn.Module:
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        place = root
        for part in path:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        register(place, last, tensor)
    return root

"""Modules with named parameters or buffers, such as one rate per weight under the weight's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn


def parameter_module(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Module whose parameters have the given names, which may contain dots, and copies of the given values.

    `nn.ParameterDict` does not allow dots, and users select parameters by these names.
    """
    return _tree(
        tensors, lambda place, name, tensor: place.register_parameter(name, nn.Parameter(tensor.detach().clone()))
    )


def buffer_module(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Module whose buffers have the given names and values: saved with the module, not trained."""
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

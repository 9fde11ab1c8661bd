"""Batch normalization by inner step: scales and shifts of each step's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog_adapters._episodic.network import Network
from gradhomog_adapters._network.mirror import mirror


def normalizations(network: Network) -> dict[str, _BatchNorm]:
    """The layers by every name that they have."""
    modules = nn.ModuleDict(network.modules).named_modules(remove_duplicate=False)
    return {name: module for name, module in modules if isinstance(module, _BatchNorm)}


def affine_names(network: Network) -> list[str]:
    """The scales and shifts among the parameters that are learnt."""
    own = {id(p) for layer in normalizations(network).values() for p in layer.parameters(recurse=False)}
    return [name for name, parameter in network.parameters().items() if id(parameter) in own]


def affine(network: Network, names: Sequence[str], inner_steps: int) -> nn.Module:
    """Parameters `<name>` `[inner_steps, channels]`, at first those of the layer in every step."""
    given, steps = network.parameters(), max(inner_steps, 1)
    return mirror({name: torch.stack([given[name]] * steps) for name in names})

"""Layers of an encoder that an option selects by name."""

import fnmatch
from collections.abc import Mapping, Sequence

from torch import nn

from gradhomog import OptionError


def matching_layers(
    layers: str | Sequence[str], modules: Mapping[str, nn.Module], expected: str
) -> dict[str, nn.Module]:
    """Return the modules whose names match one of the glob patterns, in their order.

    Raises:
        OptionError: a pattern matches none; `layers` must match what `expected` describes.
    """
    named: set[str] = set()
    for pattern in [layers] if isinstance(layers, str) else layers:
        matches = fnmatch.filter(modules, pattern)
        if not matches:
            raise OptionError(
                f"`layers` must match {expected} of the encoder; {pattern!r} matches none of {list_layers(modules)}."
            )
        named.update(matches)
    return {name: module for name, module in modules.items() if name in named}


def list_layers(modules: Mapping[str, nn.Module]) -> str:
    """Return names and classes, for messages."""
    return ", ".join(f"{name} ({type(module).__name__})" for name, module in modules.items()) or "none"

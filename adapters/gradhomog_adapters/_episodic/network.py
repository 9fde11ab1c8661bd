"""An encoder and a head as functions of their parameters, by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog import OptionError

Parameters = Mapping[str, Tensor]
"""Tensors by the names `encoder.*` and `head.*`."""


class Network:
    """Calls encoder and head with parameters and buffers that are handed in; the modules themselves never change.

    A parameter that occurs under several names (tied weights) is held under the first and used under all.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        self.modules = {"encoder": encoder, "head": head}
        both = nn.ModuleDict(self.modules)
        first: dict[int, str] = {}
        self._canonical: dict[str, str] = {}
        # By modules, each once: of one that stands at two places, a parameter must not be replaced twice.
        for path, module in both.named_modules():
            for own, parameter in module.named_parameters(path, recurse=False, remove_duplicate=False):
                self._canonical[own] = first.setdefault(id(parameter), own)
        self._both = both

    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are learnt, each once."""
        return {name: p for name, p in self._both.named_parameters() if p.requires_grad}

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers: what a task writes into them (running statistics) dies with the task."""
        copies: dict[int, Tensor] = {}
        return {
            name: copies.setdefault(id(buffer), buffer.clone())
            for name, buffer in self._both.named_buffers(remove_duplicate=False)
        }

    def encode(self, parameters: Parameters, buffers: Parameters, x: Tensor) -> Tensor:
        """Features `[n, features]`."""
        return self._call("encoder", parameters, buffers, x)

    def classify(self, parameters: Parameters, buffers: Parameters, features: Tensor) -> Tensor:
        """Outputs `[n, ways]`."""
        return self._call("head", parameters, buffers, features)

    def outputs(self, parameters: Parameters, buffers: Parameters, x: Tensor) -> Tensor:
        return self.classify(parameters, buffers, self.encode(parameters, buffers, x))

    def _call(self, part: str, parameters: Parameters, buffers: Parameters, x: Tensor) -> Tensor:
        prefix = part + "."
        tensors = {
            name.removeprefix(prefix): parameters[canonical]
            for name, canonical in self._canonical.items()
            if name.startswith(prefix) and canonical in parameters
        }
        tensors |= {name.removeprefix(prefix): b for name, b in buffers.items() if name.startswith(prefix)}
        result: Tensor = functional_call(self.modules[part], tensors, (x,), tie_weights=False)
        return result


def choose(names: Sequence[str], patterns: str | Sequence[str], option: str) -> list[str]:
    """The names that match a glob pattern, or any of several.

    Raises:
        OptionError: a pattern matches nothing.
    """
    chosen: set[str] = set()
    if not patterns:
        raise OptionError(f"`{option}` must hold at least one pattern; got {patterns!r}.")
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise OptionError(
                f"`{option}` must match the name of a parameter; {pattern!r} matches none of {', '.join(names)}."
            )
        chosen.update(matches)
    return [name for name in names if name in chosen]


def constants(tensors: Parameters) -> dict[str, Tensor]:
    """The same values; nothing is differentiated through them."""
    return {name: tensor.detach() for name, tensor in tensors.items()}


def filled(found: Mapping[str, Tensor | None], like: Parameters) -> dict[str, Tensor]:
    """Named derivatives with zeros for what does not matter, of the shape of the tensors derived by."""
    return {name: torch.zeros_like(like[name]) if slope is None else slope for name, slope in found.items()}


def gradients(
    loss: Tensor, tensors: Parameters, extra: Sequence[Tensor] = (), create_graph: bool = False
) -> tuple[dict[str, Tensor | None], list[Tensor]]:
    """Derivatives of a loss by named tensors (None where it does not depend on one) and by further tensors (zeros)."""
    if not tensors and not extra:
        return {}, []
    found = torch.autograd.grad(loss, [*tensors.values(), *extra], create_graph=create_graph, allow_unused=True)
    named: dict[str, Tensor | None] = dict(zip(tensors, found[: len(tensors)], strict=True))
    others = [
        torch.zeros_like(tensor) if gradient is None else gradient
        for tensor, gradient in zip(extra, found[len(tensors) :], strict=True)
    ]
    return named, others

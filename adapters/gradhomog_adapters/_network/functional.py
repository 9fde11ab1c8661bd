"""An encoder and a head as functions of their parameters, by name."""

from __future__ import annotations

import fnmatch
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.func import functional_call

from gradhomog import OptionError

Parameters = Mapping[str, Tensor]
"""Tensors by the names `encoder.*`, `head.*` and, of some learners, `learner.*`; a network ignores other names."""


class Network:
    """Calls encoder and head with parameters and buffers that are passed in; the modules themselves never change.

    A parameter that occurs under several names (tied weights) is held under the first and used under all.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        self._both = nn.Sequential(OrderedDict(encoder=encoder, head=head))
        canonical: dict[int, str] = {}
        for name, parameter in self._both.named_parameters(remove_duplicate=False):
            canonical.setdefault(id(parameter), name)
        self._parts = {
            prefix: _Part.of(prefix, module, canonical)
            for prefix, module in (("", self._both), ("encoder.", encoder), ("head.", head))
        }

    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are learnt, each once."""
        return {name: p for name, p in self._both.named_parameters() if p.requires_grad}

    def modules(self) -> dict[str, nn.Module]:
        """All submodules, by every name that they have."""
        return dict(self._both.named_modules(remove_duplicate=False))

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers: what one task writes into them (running statistics) does not reach another."""
        copies: dict[int, Tensor] = {}
        found: dict[str, Tensor] = {}
        for name, buffer in self._both.named_buffers(remove_duplicate=False):
            found[name] = copies.setdefault(id(buffer), buffer.clone())
        return found

    def call(self, part: str, parameters: Parameters, buffers: Parameters, x: Tensor) -> Tensor:
        """The output of `"encoder."`, of `"head."`, or of both, `""`."""
        called = self._parts[part]
        tensors: dict[str, Tensor] = {}
        for local, canonical in called.parameters:
            if canonical in parameters:  # a frozen one is not
                tensors[local] = parameters[canonical]
        for name in buffers:
            if name.rpartition(".")[0] in called.places:
                tensors[name.removeprefix(part)] = buffers[name]
        result: Tensor = functional_call(called.module, tensors, (x,), tie_weights=False)
        return result


@dataclass(frozen=True)
class _Part:
    """What can be called: its parameters, by the name within it and the name under which each is learnt, and the places
    of its submodules. A module that stands at two places is listed once: no tensor of it must be replaced twice."""

    module: nn.Module
    parameters: list[tuple[str, str]]
    places: set[str]

    @classmethod
    def of(cls, prefix: str, module: nn.Module, canonical: Mapping[int, str]) -> _Part:
        parameters = [
            (local, canonical[id(parameter)])
            for path, part in module.named_modules()
            for local, parameter in part.named_parameters(path, recurse=False, remove_duplicate=False)
        ]
        return cls(module, parameters, {(prefix + path).rstrip(".") for path, _ in module.named_modules()})


def learned(own: nn.ModuleDict, parameters: Parameters, part: str, name: str) -> Tensor:
    """The parameter `learner.<part>.<name>` of a learner; its value if it was frozen, and is not among `parameters`."""
    found = parameters.get(f"learner.{part}.{name}")
    return own[part].get_parameter(name).detach() if found is None else found


def call_own(own: nn.ModuleDict, parameters: Parameters, part: str, inputs: Tensor) -> Tensor:
    """The output of a module of a learner under its parameters `learner.<part>.*`; frozen ones keep their values."""
    prefix = f"learner.{part}."
    tensors = {n.removeprefix(prefix): tensor for n, tensor in parameters.items() if n.startswith(prefix)}
    result: Tensor = functional_call(own[part], tensors, (inputs,))
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

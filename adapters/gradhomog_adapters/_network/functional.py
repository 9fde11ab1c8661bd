"""Encoder and head as functions of named parameters."""

from __future__ import annotations

import fnmatch
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog import OptionError
from gradhomog_adapters._network.checkpoints import (
    reject_checkpoints,
    reject_reentrant_checkpoints,
    reject_reentrant_checkpoints_of_data,
)

Parameters = Mapping[str, Tensor]
"""Tensors named `encoder.*`, `head.*` and, for some learners, `learner.*`; networks ignore other names."""


class Network:
    """Calls encoder and head with given parameters and buffers; never modifies the modules.

    A parameter with several names (tied weights) is listed under the first name and used for all.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        self._both = nn.Sequential(OrderedDict(encoder=encoder, head=head))
        self._without_checkpoint: set[str] = set()
        canonical: dict[int, str] = {}
        for name, parameter in self._both.named_parameters(remove_duplicate=False):
            canonical.setdefault(id(parameter), name)
        self._parts = {
            prefix: _Submodel.of(prefix, module, canonical)
            for prefix, module in (("", self._both), ("encoder.", encoder), ("head.", head))
        }

    def parameters(self) -> dict[str, Tensor]:
        """The parameters that require grad, each once."""
        return {name: p for name, p in self._both.named_parameters() if p.requires_grad}

    def modules(self) -> dict[str, nn.Module]:
        """All submodules, under each of their names."""
        return dict(self._both.named_modules(remove_duplicate=False))

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers, so that tasks do not share running statistics."""
        copies: dict[int, Tensor] = {}
        found: dict[str, Tensor] = {}
        for name, buffer in self._both.named_buffers(remove_duplicate=False):
            found[name] = copies.setdefault(id(buffer), buffer.clone())
        return found

    def call(self, part: str, parameters: Parameters, buffers: Parameters, x: Tensor) -> Tensor:
        """Return the output of one part: `"encoder."`, `"head."`, or `""` for both."""
        selected = self._parts[part]
        tensors: dict[str, Tensor] = {}
        for local, canonical in selected.parameters:
            if canonical in parameters:  # frozen parameters are not
                tensors[local] = parameters[canonical]
        for name in buffers:
            if name.rpartition(".")[0] in selected.module_names:
                tensors[name.removeprefix(part)] = buffers[name]
        if torch.compiler.is_compiling():  # only within torch.func, whose transforms reject checkpoints themselves
            compiled: Tensor = functional_call(selected.module, tensors, (x,), tie_weights=False)
            return compiled
        # A checkpoint would recompute with the module's own tensors: correct only if none is replaced.
        replaced = not all(isinstance(tensor, nn.Parameter) for tensor in tensors.values())
        trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values())
        first = trained and part not in self._without_checkpoint
        with (
            reject_checkpoints() if replaced else nullcontext(),
            reject_reentrant_checkpoints_of_data() if first else nullcontext(),
        ):
            result: Tensor = functional_call(selected.module, tensors, (x,), tie_weights=False)
        if first:
            reject_reentrant_checkpoints(result, [x, *tensors.values()])
            self._without_checkpoint.add(part)
        return result


@dataclass(frozen=True)
class _Submodel:
    """The encoder, the head, or both, as one callable.

    Attributes:
        module: the module that is called.
        parameters: its parameters, as pairs of local and canonical name.
        module_names: the names of its submodules.

    A module with two names is listed once, because `functional_call` must replace each tensor once.
    """

    module: nn.Module
    parameters: list[tuple[str, str]]
    module_names: set[str]

    @classmethod
    def of(cls, prefix: str, module: nn.Module, canonical: Mapping[int, str]) -> _Submodel:
        parameters = [
            (local, canonical[id(parameter)])
            for path, part in module.named_modules()
            for local, parameter in part.named_parameters(path, recurse=False, remove_duplicate=False)
        ]
        return cls(module, parameters, {(prefix + path).rstrip(".") for path, _ in module.named_modules()})


def learner_parameter(extra_modules: nn.ModuleDict, parameters: Parameters, part: str, name: str) -> Tensor:
    """Parameter `learner.<part>.<name>`: from `parameters`, or its stored value if it is frozen."""
    found = parameters.get(f"learner.{part}.{name}")
    return extra_modules[part].get_parameter(name).detach() if found is None else found


def call_learner_module(extra_modules: nn.ModuleDict, parameters: Parameters, part: str, inputs: Tensor) -> Tensor:
    """Output of a learner's module with the parameters `learner.<part>.*`; frozen ones keep their stored values."""
    prefix = f"learner.{part}."
    tensors = {n.removeprefix(prefix): tensor for n, tensor in parameters.items() if n.startswith(prefix)}
    result: Tensor = functional_call(extra_modules[part], tensors, (inputs,))
    return result


def match_names(names: Sequence[str], patterns: str | Sequence[str], option: str) -> list[str]:
    """Names that match at least one of the glob patterns, in order.

    Raises:
        OptionError: there is no pattern, or a pattern matches no name.
    """
    chosen: set[str] = set()
    if not patterns:
        raise OptionError(f"`{option}` must contain at least one pattern; got {patterns!r}.")
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise OptionError(
                f"`{option}` must match the name of a parameter; {pattern!r} matches none of {', '.join(names)}."
            )
        chosen.update(matches)
    return [name for name in names if name in chosen]

"""Snapshot and restore the state of a module and of TorchOpt's meta-optimizers around an inner loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torchopt
from torch import Tensor, nn

from gradhomog import OptionError
from gradhomog_adapters._inner_optimizer import closure_variable

Container = dict[str, Tensor | None]


class Snapshot:
    """Stores parameters (objects and values), buffers and the states of inner optimizers.

    Within `restore_on_exit` the module uses copies of its buffers, which are discarded after each task; the buffers
    themselves are never modified. A layer that is registered twice is stored once.
    """

    def __init__(self, net: nn.Module, inner: Sequence[torchopt.MetaOptimizer]) -> None:
        # TorchOpt replaces entries of these dicts, so the entries must be restored.
        self._parameters: list[tuple[Container, Container]] = []
        self._buffers: list[tuple[Container, Container]] = []
        slots: dict[int, list[tuple[str, Container, str]]] = {}
        for path, module in net.named_modules():
            container: Container = module._parameters
            self._parameters.append((container, dict(container)))
            self._buffers.append((module._buffers, dict(module._buffers)))
            for name, parameter in container.items():
                if parameter is not None:
                    _check_leaf(f"{path}.{name}".lstrip("."), parameter)
                    slots.setdefault(id(parameter), []).append((f"{path}.{name}".lstrip("."), container, name))
        self._tied = [places for places in slots.values() if len(places) > 1]
        self._values = [
            (name, parameter, parameter.detach().clone())
            for name, parameter in net.named_parameters()
            if not isinstance(parameter, nn.parameter.UninitializedParameter)
        ]
        self._versions = [parameter._version for _, parameter, _ in self._values]
        for optimizer in inner:
            _check_inner(optimizer, [container for container, _ in self._parameters])
        self._inner = [(optimizer, optimizer.state_dict()) for optimizer in inner]

    @contextmanager
    def restore_on_exit(self) -> Iterator[None]:
        """Context in which `restore` can be called; on exit all state is restored, with the original buffers."""
        try:
            self.restore()
            yield
        finally:
            self._write_back({})

    def restore(self) -> None:
        """Restore the state at the start of a task, with new copies of the buffers."""
        copies: dict[int, Tensor] = {}
        for _, buffers in self._buffers:
            for buffer in buffers.values():
                if buffer is not None and id(buffer) not in copies:  # a buffer that is registered twice is copied once
                    copies[id(buffer)] = buffer.detach().clone().requires_grad_(buffer.requires_grad)
        self._write_back(copies)

    def _write_back(self, copies: Mapping[int, Tensor]) -> None:
        for container, parameters in self._parameters:
            container.update(parameters)
        for container, buffers in self._buffers:
            container.update({name: copies.get(id(buffer), buffer) for name, buffer in buffers.items()})
        for optimizer, state in self._inner:
            optimizer.load_state_dict(state)
        with torch.no_grad():
            for (_, parameter, value), version in zip(self._values, self._versions, strict=True):
                if parameter._version != version:
                    parameter.copy_(value)
        self._versions = [parameter._version for _, parameter, _ in self._values]

    def modified_parameters(self) -> list[str]:
        """Names of the parameters that were modified in place since the last `restore`."""
        pairs = zip(self._values, self._versions, strict=True)
        return [name for (name, parameter, _), version in pairs if parameter._version != version]

    def split_parameters(self) -> list[str]:
        """Names of a shared parameter that modules now hold as different tensors; empty if there is none."""
        for places in self._tied:
            if len({id(container[key]) for _, container, key in places}) > 1:
                return [name for name, _, _ in places]
        return []


def _check_leaf(name: str, parameter: Tensor) -> None:
    if not parameter.is_leaf:
        raise OptionError(
            f"the parameters of `net` must be leaf tensors when a meta-step starts; `{name}` is the result of an inner "
            "loop. Restore them first: torchopt.recover_state_dict(net, state), with a state extracted with "
            "by='reference', detach_buffers=True."
        )


def _check_inner(optimizer: object, containers: Sequence[Container]) -> None:
    if not isinstance(optimizer, torchopt.MetaOptimizer):
        raise OptionError(
            f"`inner` must be a TorchOpt meta-optimizer such as torchopt.MetaSGD, or several; got "
            f"{type(optimizer).__name__}."
        )
    adapted = {id(container) for group in optimizer.param_containers_groups for container in group}
    if adapted.isdisjoint(map(id, containers)):
        raise OptionError(
            f"`inner` must adapt `net` or a part of it; this {type(optimizer).__name__} adapts another module. "
            "Create it from the module that is passed to the meta-step."
        )
    state: Any = optimizer.state_dict()
    tensors: list[Any] = torchopt.pytree.tree_leaves(state)
    if any(isinstance(tensor, Tensor) and tensor.grad_fn is not None for tensor in tensors):
        raise OptionError(
            f"the state of `inner` must not depend on an earlier inner loop, but the state of this "
            f"{type(optimizer).__name__} has a graph. Create a new optimizer, or restore the state that it had before "
            "the inner loop."
        )
    if closure_variable(optimizer.impl.update, "dampening"):
        raise OptionError(
            "`inner` with momentum and dampening cannot be restored, because TorchOpt keeps a flag for the first "
            "step in a closure. Create a new one in each task, after `with step.task(...):`, and omit `inner`."
        )

"""What an inner loop changes of a module and of TorchOpt's meta-optimizers, put back whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torchopt
from torch import Tensor, nn

from gradhomog import OptionError
from gradhomog_adapters._inner_optimizer import captured

Container = dict[str, Tensor | None]


class Restored:
    """Holds on to parameters (the objects and their values), buffers and the states of inner optimizers.

    While it is entered the module works on copies of its buffers: what a task writes into them dies with the task, and
    the buffers themselves are never written to. A layer that is registered twice is held once.
    """

    def __init__(self, net: nn.Module, inner: Sequence[torchopt.MetaOptimizer]) -> None:
        # TorchOpt replaces entries of these dicts, so the dicts are what has to be put right.
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
    def entered(self) -> Iterator[None]:
        """Within the context `begin` may be called; afterwards everything is as it was, buffers included."""
        try:
            self.begin()
            yield
        finally:
            self._put_back({})

    def begin(self) -> None:
        """Put all back to where a task starts from."""
        copies: dict[int, Tensor] = {}
        for _, buffers in self._buffers:
            for buffer in buffers.values():
                if buffer is not None and id(buffer) not in copies:  # one that is registered twice stays one
                    copies[id(buffer)] = buffer.detach().clone().requires_grad_(buffer.requires_grad)
        self._put_back(copies)

    def _put_back(self, copies: Mapping[int, Tensor]) -> None:
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

    def written(self) -> list[str]:
        """Names of the parameters that were written to in place since they were last put back."""
        pairs = zip(self._values, self._versions, strict=True)
        return [name for (name, parameter, _), version in pairs if parameter._version != version]

    def untied(self) -> list[str]:
        """Names of a parameter that several modules share and that is now another in each; empty if there is none."""
        for places in self._tied:
            if len({id(container[key]) for _, container, key in places}) > 1:
                return [name for name, _, _ in places]
        return []


def _check_leaf(name: str, parameter: Tensor) -> None:
    if not parameter.is_leaf:
        raise OptionError(
            f"`net` must have its own parameters when a meta-step begins; `{name}` is the result of an inner loop. "
            "Put them back first: torchopt.recover_state_dict(net, state), where state was extracted with "
            "by='reference', detach_buffers=True."
        )


def _check_inner(optimizer: object, containers: Sequence[Container]) -> None:
    if not isinstance(optimizer, torchopt.MetaOptimizer):
        raise OptionError(
            f"`inner` must be a TorchOpt meta-optimizer such as torchopt.MetaSGD, or several; got "
            f"{type(optimizer).__name__}."
        )
    held = {id(container) for group in optimizer.param_containers_groups for container in group}
    if held.isdisjoint(map(id, containers)):
        raise OptionError(
            f"`inner` must adapt `net` or a part of it; this {type(optimizer).__name__} adapts another module. "
            "Make it of the module that the meta-step is given."
        )
    state: Any = optimizer.state_dict()
    tensors: list[Any] = torchopt.pytree.tree_leaves(state)
    if any(isinstance(tensor, Tensor) and tensor.grad_fn is not None for tensor in tensors):
        raise OptionError(
            f"`inner` must be as it is before an inner loop; the state of this {type(optimizer).__name__} comes from "
            "one. Make a new one, or recover the state that it had."
        )
    if captured(optimizer.impl.update, "dampening"):
        raise OptionError(
            "`inner` with momentum and dampening cannot be put back: TorchOpt keeps in a closure whether it has "
            "stepped before. Make it anew in each task, after `with step.task(...):`, and leave `inner` out."
        )

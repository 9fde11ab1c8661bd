"""The state of modules whose forward pass is repeated by backward passes, such as those in a checkpoint.

N passes through a checkpoint repeat its forward pass N times, and each repetition changes the state of its modules:
running statistics, the vectors of a spectral normalization, the moving averages of a codebook, numbers of calls.
"""

import functools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from gradhomog.errors import OptionError

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class ModuleState:
    """The state of a module and its submodules at one moment.

    Attributes:
        objects: attributes, buffers and parameters, each dict with a copy of it: for those that are replaced.
        contents: tensors with copies of their values: for those that are changed in place. Parameters are not copied.
    """

    objects: list[tuple[dict[str, Any], dict[str, Any]]]
    contents: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, module: nn.Module) -> "ModuleState":
        owners = [owner for part in module.modules() for owner in (vars(part), part._buffers, part._parameters)]
        tensors = [value for owner in owners for value in owner.values() if isinstance(value, Tensor)]
        copied = [value for value in tensors if value.grad_fn is None and not isinstance(value, nn.Parameter)]
        return cls([(owner, {}) for owner in owners], [(value, value) for value in copied]).now()

    def now(self) -> "ModuleState":
        """Return the present state of the same dicts and tensors."""
        objects = [(owner, dict(owner)) for owner, _ in self.objects]
        return ModuleState(objects, [(tensor, tensor.clone()) for tensor, _ in self.contents])

    def changed(self) -> "ModuleState":
        """Return the part of this state that has changed since."""
        objects = [
            (owner, values)
            for owner, values in self.objects
            if any(owner.get(name) is not value for name, value in values.items())
        ]
        return ModuleState(objects, [(tensor, copy) for tensor, copy in self.contents if not torch.equal(tensor, copy)])

    def restore(self) -> None:
        for owner, values in self.objects:
            owner.update(values)
        for tensor, copy in self.contents:
            # The graph may have saved the tensor before it was changed; `data` does not count as another change.
            tensor.data.copy_(copy)


class _Pass(threading.local):
    """The calls of modules in one backward pass; that of a GPU runs in a thread of its own.

    Args:
        before: the state before each call that an earlier pass made, by the checkpoint, or the node, that repeats the
            forward pass, and the number of the call in it. Calls that no earlier pass made are added.
        to_undo: receives the state before each of the other calls.
        changed: receives the parameters that modules changed.
    """

    def __init__(self, before: dict[Any, ModuleState], to_undo: list[ModuleState], changed: list[str]) -> None:
        self.before, self.to_undo, self.changed = before, to_undo, changed
        self.running, self.numbers = 0, Counter[Any]()
        self.first: tuple[Any, ModuleState, dict[str, nn.Parameter], list[int]] | None = None

    def begin(self, module: nn.Module, _: Any) -> None:
        node = torch._C._current_autograd_node()
        if node is None:  # a call in another thread of the program
            return
        self.running += 1
        if self.running > 1:  # a submodule, whose state is part of the module's
            return
        region = next(iter(checkpoints(node)), node)
        key = region, self.numbers[region]
        self.numbers[region] += 1
        with torch.no_grad(), _disable_current_modes():
            if known := self.before.get(key):
                self.to_undo.append(known.now())
                known.restore()
            else:
                self.undo()
                # Those of `fully_shard` are DTensors.
                parameters = {name: x for name, x in module.named_parameters() if type(x) is nn.Parameter}
                self.first = key, ModuleState.of(module), parameters, checksums(parameters.values())

    def end(self, module: nn.Module, *_: Any) -> None:
        if torch._C._current_autograd_node() is None:
            return
        self.running -= 1
        if self.running or self.first is None:
            return
        key, before, parameters, sums = self.first
        self.first = None
        with torch.no_grad(), _disable_current_modes():
            self.before[key] = before.changed()
            pairs = zip(parameters, sums, checksums(parameters.values()), strict=True)
        self.changed.extend(f"{name!r} of {type(module).__name__}" for name, old, new in pairs if old != new)

    def undo(self) -> None:
        while self.to_undo:
            self.to_undo.pop().restore()


class RecomputedModules:
    """The modules that are called by the backward passes through one graph.

    When a checkpoint is recomputed for the first time, its modules change their state, as in one ordinary backward
    pass. Each later time, each call of a module starts from the state before the same call of the first time, and the
    pass is undone at its end. All rows are thus computed from one state, which changes once.

    The state is that of buffers, other tensors without a graph, and attributes that are replaced, such as numbers.
    """

    def __init__(self) -> None:
        self._before: dict[Any, ModuleState] = {}

    @contextmanager
    def keep_state(self) -> Iterator[None]:
        """Keep the state during one backward pass.

        Raises:
            OptionError: a module changed its parameters, so that other passes would use other parameters.
        """
        changed = list[str]()
        one = _Pass(self._before, [], changed)
        handles = [
            register_module_forward_pre_hook(one.begin),
            # Also called if a checkpoint stops a forward pass because all tensors have been recomputed.
            register_module_forward_hook(one.end, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            one.undo()  # now, because until the end of the pass the graph reads tensors of the state
        if changed:
            raise OptionError(
                "the step requires several backward passes, each of which repeats the forward pass of a checkpoint, "
                f"but that changes the parameter {changed[0]}: later passes would use other values. Make it a buffer, "
                "which gradhomog restores, do not checkpoint this module, or use a pipeline with one backward pass or "
                "level='features'. Nothing was written."
            )


def checkpoints(node: Any) -> set[Any]:
    """Return the checkpoints that recompute a node's saved tensors, each by its hook."""
    node_type: Any = type(node)
    raw = [getattr(node, name) for name in _saved_tensors(node_type)]
    hooks = [saved.unpack_hook for part in raw for saved in (part if isinstance(part, (tuple, list)) else [part])]
    return {hook for hook in hooks if "_checkpoint_hook" in getattr(hook, "__qualname__", "")}


@functools.cache
def _saved_tensors(node_type: Any) -> list[str]:
    return [name for name in dir(node_type) if name.startswith("_raw_saved")]


def checksums(tensors: Iterable[Tensor | None]) -> list[int]:
    """Return the sum of each tensor's bits, read as integers: it does not overflow to NaN, and needs no copy."""
    sums = []
    for tensor in tensors:
        if tensor is not None and tensor.layout == torch.strided:
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            sums.append(int(real.detach().view(_INTEGER_OF_SIZE[real.element_size()]).sum(dtype=torch.int64)))
    return sums

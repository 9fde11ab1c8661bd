"""The state of modules whose forward pass is repeated by backward passes, such as those in a checkpoint.

N passes through a checkpoint repeat its forward pass N times, and each repetition changes the state of its modules:
running statistics, the vectors of a spectral normalization, the moving averages of a codebook, numbers of calls.
"""

import functools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import _disable_current_modes

from gradhomog.errors import OptionError

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class ModuleState:
    """The state of modules at one moment.

    Attributes:
        objects: attributes, buffers and parameters, each dict with a copy of it: for those that are replaced.
        contents: tensors with copies of their values: for those that are changed in place. Parameters are not copied.
    """

    objects: list[tuple[dict[str, Any], dict[str, Any]]]
    contents: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, modules: Iterable[nn.Module]) -> "ModuleState":
        owners = [owner for part in modules for owner in (vars(part), part._buffers, part._parameters)]
        tensors = [value for owner in owners for value in owner.values() if isinstance(value, Tensor)]
        copied = [
            (value, value)
            for value in tensors
            if value.grad_fn is None and not value.is_meta and not isinstance(value, _NOT_COPIED)
        ]
        return cls([(owner, {}) for owner in owners], copied).now()

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

    def overlaps(self, other: "ModuleState") -> bool:
        """True if both have a dict or a tensor in common."""
        ids = {id(part) for part, _ in (*self.objects, *self.contents)}
        return any(id(part) in ids for part, _ in (*other.objects, *other.contents))

    def restore(self) -> None:
        for owner, values in self.objects:
            owner.update(values)
        for tensor, copy in self.contents:
            # The graph may have saved the tensor before it was changed; `data` does not count as another change.
            tensor.data.copy_(copy)


_NOT_COPIED = (nn.Parameter, UninitializedParameter, UninitializedBuffer)


@dataclass
class _Call:
    """The first call of some modules, with the state and the parameters before it."""

    key: Any
    before: ModuleState
    parameters: Mapping[str, Tensor]
    sums: list[int]


class _Pass(threading.local):
    """The modules that are called in one backward pass; on a GPU it runs in another thread.

    Args:
        before: the state before each call that an earlier pass made, by the region and the number of the call in it;
            others are added. A region is a checkpoint, or another node of the graph that repeats a forward pass.
        to_undo: receives the state before each of the other calls.
        changed: receives the parameters that modules changed.
    """

    def __init__(self, before: dict[Any, ModuleState], to_undo: list[ModuleState], changed: list[str]) -> None:
        self.before, self.to_undo, self.changed = before, to_undo, changed
        self.running, self.numbers = 0, Counter[Any]()
        self.regions, self.calls = list[Any](), list[_Call | None]()

    def before_module(self, module: nn.Module, _: Any) -> None:
        node = torch._C._current_autograd_node()
        if node is None:  # a call in another thread of the program
            return
        self.running += 1
        if self.running == 1:  # the state of submodules is part of the module's
            self.begin(self.regions[-1] if self.regions else node, [*module.modules()], dict(module.named_parameters()))

    def after_module(self, *_: Any) -> None:
        if torch._C._current_autograd_node() is not None:
            self.running -= 1
            if not self.running:
                self.end()

    def recompute(self, frame: Any, function: Any, *inputs: Any) -> Any:
        """Recompute a checkpoint, whose function may belong to modules that it does not call."""
        running, self.running = self.running, 0
        self.regions.append(frame)
        owners = list(dict.fromkeys(_owners(function)))
        parameters = {name: x for part in owners for name, x in part.named_parameters(recurse=False)}
        self.begin(frame, owners, parameters)
        try:
            return function(*inputs)
        finally:
            self.end()
            self.regions.pop()
            self.running = running

    def begin(self, region: Any, modules: list[nn.Module], parameters: dict[str, nn.Parameter]) -> None:
        key = region, self.numbers[region]
        self.numbers[region] += 1
        with torch.no_grad(), _disable_current_modes():
            if known := self.before.get(key):
                self.to_undo.append(known.now())
                known.restore()
                self.calls.append(None)
            else:
                if self.to_undo:
                    self.undo(ModuleState.of(modules))
                # Those of `fully_shard` are DTensors.
                plain = {n: x for n, x in parameters.items() if type(x) is nn.Parameter and not x.is_meta}
                names = {f"{name!r} of {type(modules[0]).__name__}": value for name, value in plain.items()}
                self.calls.append(_Call(key, ModuleState.of(modules), names, checksums(names.values())))

    def end(self) -> None:
        call = self.calls.pop()
        if call is not None:
            with torch.no_grad(), _disable_current_modes():
                self.before[call.key] = call.before.changed()
                pairs = zip(call.parameters, call.sums, checksums(call.parameters.values()), strict=True)
            self.changed.extend(name for name, old, new in pairs if old != new)

    def undo(self, other: ModuleState | None = None) -> None:
        """Undo calls, or those that share state with another call."""
        kept = list[ModuleState]()
        while self.to_undo:
            state = self.to_undo.pop()
            if other is None or state.overlaps(other):
                state.restore()
            else:
                kept.insert(0, state)
        self.to_undo.extend(kept)


class RecomputedModules:
    """The modules whose forward pass is repeated by the backward passes through one graph.

    When a checkpoint is recomputed for the first time, its modules change their state, as in one ordinary backward
    pass. Each later time, each call of a module starts from the state before the same call of the first time, and the
    pass is undone at its end. All rows are thus computed from one state, which changes once.

    The state is that of buffers, other tensors without a graph, and attributes that are replaced, such as numbers: of
    modules that are called, and of those to which the checkpointed function belongs.

    Args:
        nodes: of the graph.
    """

    def __init__(self, nodes: Iterable[Any] = ()) -> None:
        self._nodes, self._before = nodes, dict[Any, ModuleState]()

    @functools.cached_property
    def _frames(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        saved = [part for node in self._nodes for part in saved_tensors(node)]
        while saved:
            hook = checkpoint_hook(saved.pop())
            frame = None if hook is None else _variables(hook)["frame"]
            if frame is not None and id(frame) not in found:
                found[id(frame)] = frame
                saved += [value for value in getattr(frame, "saved_args", ()) if hasattr(value, "unpack_hook")]
        return found

    @functools.cached_property
    def _may_repeat(self) -> bool:
        return bool(self._frames) or any(isinstance(node, BackwardCFunction) for node in self._nodes)

    @contextmanager
    def keep_state(self) -> Iterator[None]:
        """Keep the state during one backward pass.

        Raises:
            OptionError: a module changed its parameters, so that other passes would use other parameters.
        """
        if not self._may_repeat:
            yield
            return
        changed = list[str]()
        one, functions = _Pass(self._before, [], changed), [(x, x.recompute_fn) for x in self._frames.values()]
        handles = [
            register_module_forward_pre_hook(one.before_module),
            # Also called if a checkpoint stops a forward pass because all tensors have been recomputed.
            register_module_forward_hook(one.after_module, always_call=True),
        ]
        for frame, function in functions:
            frame.recompute_fn = functools.partial(one.recompute, frame, function)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for frame, function in functions:
                frame.recompute_fn = function
            one.undo()  # now, because until the end of the pass the graph reads tensors of the state
        if changed:
            raise OptionError(
                "the step requires several backward passes, each of which repeats the forward pass of a checkpoint, "
                f"but that changes the parameter {changed[0]}: later passes would use other values. Make it a buffer, "
                "which gradhomog restores, do not checkpoint this module, or use a pipeline with one backward pass or "
                "level='features'. Nothing was written."
            )


def _variables(function: Any) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function uses."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def _owners(function: Any, depth: int = 4) -> Iterator[nn.Module]:
    """Yield the modules that a function belongs to, or that it and its arguments refer to, each perhaps again."""
    if isinstance(function, nn.Module):
        yield function
        return
    parts: Iterable[Any] = ()
    if isinstance(function, functools.partial):
        parts = function.func, function.args, function.keywords
    elif isinstance(function, list | tuple | dict) and len(function) < 100:  # not data
        parts = function.values() if isinstance(function, dict) else function
    elif isinstance(function, MethodType):
        parts = function.__self__, function.__func__
    elif isinstance(function, FunctionType):
        parts = _variables(function).values()
    for part in parts if depth else ():
        yield from _owners(part, depth - 1)


def checkpoints(node: Any) -> set[Any]:
    """Return the checkpoints that recompute a node's saved tensors, each by its hook."""
    return {hook for saved in saved_tensors(node) if (hook := checkpoint_hook(saved)) is not None}


def checkpoint_hook(saved: Any) -> Any:
    """Return the hook by which a checkpoint recomputes a saved tensor; None without a checkpoint."""
    hook = saved.unpack_hook
    return hook if hook is not None and "_checkpoint_hook" in getattr(hook, "__qualname__", "") else None


def saved_tensors(node: Any) -> list[Any]:
    """Return the tensors that a node has saved, packed."""
    node_type: Any = type(node)
    raw = [getattr(node, name) for name in _names_of_saved(node_type)]
    return [saved for part in raw for saved in (part if isinstance(part, (tuple, list)) else [part])]


@functools.cache
def _names_of_saved(node_type: type[Any]) -> list[str]:
    return [name for name in dir(node_type) if name.startswith("_raw_saved")]


def checksums(tensors: Iterable[Tensor | None]) -> list[int]:
    """Return the sum of each tensor's bits, read as integers: it wraps around instead of overflowing to NaN."""
    sums = []
    for tensor in tensors:
        if tensor is not None and tensor.layout == torch.strided:
            real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            size = real.element_size()
            sums.append(
                int(real.detach().view(_INTEGER_OF_SIZE[size]).sum(dtype=torch.int64 if size == 8 else torch.int32))
            )
    return sums

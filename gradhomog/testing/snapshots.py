"""Snapshots of objects, modules and global generators for comparison before and after; bytes of all live tensors."""

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

Object = TypeVar("Object")
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, Tensor, torch.Generator)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


# -- objects ---------------------------------------------------------------------------------------------------------


def find_objects(owner: object, kind: type[Object]) -> Iterator[tuple[str, Object]]:
    """Yield all objects of a type in the attributes of `owner`, in containers and in other objects' attributes.

    Each object is yielded once, with its path from the owner, such as `window[2]`. Closures are not searched.
    """
    return _find(owner, "", kind, set())


def _find(value: Any, path: str, kind: type[Object], seen: set[int]) -> Iterator[tuple[str, Object]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, kind):
        yield path.lstrip("."), value
    if isinstance(value, _LEAVES):
        return
    for name, item in _parts(value):
        yield from _find(item, path + name, kind, seen)


def _parts(value: Any) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (Sequence, Set)) or type(value).__name__ == "deque":
        parts = [(f"[{index}]", item) for index, item in enumerate(value)]
    return parts + [(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items()]


def snapshot(value: Any, _seen: tuple[int, ...] = ()) -> object:
    """Return nested tuples for exact comparison by `==`. Later writes to the value do not change them."""
    if isinstance(value, Tensor):
        return _bits(value)
    if isinstance(value, torch.Generator):
        return _bits(value.get_state())
    if isinstance(value, (*_LEAVES, np.generic)):
        return type(value).__name__, repr(value)
    if id(value) in _seen:
        return "cycle"
    inside = (*_seen, id(value))
    parts = _parts(value)
    if not parts and callable(value):
        return id(value)
    return type(value).__name__, tuple((name, snapshot(item, inside)) for name, item in parts)


def changed_names(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return the names whose snapshots differ, or that only one of two mappings has."""
    missing = object()  # not equal to any snapshot
    names = dict.fromkeys([*before, *after])
    return [name for name in names if before.get(name, missing) != after.get(name, missing)]


def _bits(tensor: Tensor) -> tuple[object, ...]:
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), values


def input_bits(x: Tensor) -> list[bytes]:
    """Return the bytes of each input."""
    return [single.contiguous().numpy().tobytes() for single in x.detach()]


# -- modules ---------------------------------------------------------------------------------------------------------


def module_structure(module: nn.Module) -> list[object]:
    """Everything that affects a module's computation except values: hooks, forwards, types, attributes, modes."""
    structure: list[object] = [len(getattr(nn.modules.module, f"_global{hooks}")) for hooks in _HOOKS]
    for name, part in module.named_modules():
        hooks = [len(getattr(part, hooks)) for hooks in _HOOKS]
        structure.append((name, type(part), type(part).forward, part.training, hooks, sorted(vars(part))))
        structure += [
            (key, tuple(value.shape), value.requires_grad, len(value._backward_hooks or ()))
            for key, value in (*part._parameters.items(), *part._buffers.items()) if value is not None
        ]  # fmt: skip
    return structure


def module_values(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of parameters and buffers by name."""
    return {name: value.detach().clone() for name, value in (*module.named_parameters(), *module.named_buffers())}


# -- the process -----------------------------------------------------------------------------------------------------


def global_generators() -> dict[str, Any]:
    """Return the states of the global generators of torch, numpy and Python, comparable by `==`."""
    key: Any
    name, key, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (name, key.tobytes(), *rest),
        "Python": random.getstate(),
    }


@contextmanager
def seeded_global_generators(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python within the context; restore them afterwards."""
    before = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


def changed_generators(call: Callable[[], object], seed: int) -> str:
    """Return the names of the global generators that a call changes, whose states are those of a seed before it."""
    with seeded_global_generators(seed):
        before = global_generators()
        call()
        return ", ".join(changed_names(before, global_generators()))


def tensor_bytes() -> int:
    """Return the bytes of all strided tensors that Python tracks after garbage collection; each storage counts once."""
    gc.collect()
    storages = {}
    for candidate in gc.get_objects():
        # isinstance() would call the properties of lazy proxies
        if issubclass(type(candidate), Tensor) and candidate.layout == torch.strided:
            try:
                storage = candidate.untyped_storage()
            except NotImplementedError:  # the wrapper of a function transform, kept alive by a traceback
                continue
            if storage.device.type != "meta":  # fake tensors of a compiler use no memory; their sizes may be symbols
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())

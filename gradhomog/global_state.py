"""Global state of PyTorch: settings and functions that code of plugins must not change, and random generators."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch


def _matmul_precision() -> str:
    """The precision of float32 matrix products; "of backends" if it was set for a backend, which excludes one value."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "of backends"


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "autocast on the CPU": (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    "autocast on GPUs": (partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
    "the float32 matmul precision": (_matmul_precision, torch.set_float32_matmul_precision),
}
"""The functions that read and set each of the settings."""

READ_AT_LOADING = tuple(read for read, _ in _SETTINGS.values())
"""Called by `[*map(operator.call, READ_AT_LOADING)]` before and after a plugin is imported, and makes an object."""

READ_SETTINGS = READ_AT_LOADING[:-1]
"""Called before and after each stage; takes about half a microsecond, without the precision, which takes a call of
Python."""

_FUNCTIONS: list[tuple[Any, str]] = [
    *((kind, name) for kind in vars(torch.optim).values() if isinstance(kind, type)
      for name, value in vars(kind).items() if isinstance(value, FunctionType)),
    (torch.Tensor, "backward"), (torch.autograd, "backward"), (torch.autograd, "grad"),
]  # fmt: skip
"""The functions that training calls: methods of PyTorch's optimizers, and `backward`, by their owners and names."""

_TORCH = str(Path(torch.__file__).parent)


def restore_settings(before: Iterable[Any]) -> str:
    """Restore settings that differ from what was read before; return names and values, or an empty text.

    Args:
        before: the values of `READ_AT_LOADING`, or those of `READ_SETTINGS`, which are the first ones.
    """
    changes = []
    for (name, (read, restore)), old in zip(_SETTINGS.items(), before, strict=False):
        if (new := read()) != old:
            restore(old)
            changes.append(f"{name} from {old} to {new}")
    return " and ".join(changes)


def read_functions() -> list[Any]:
    """Return the functions that training calls: methods of PyTorch's optimizers, and `backward`."""
    return [vars(owner).get(name) for owner, name in _FUNCTIONS]


def restore_functions(before: Iterable[Any]) -> str:
    """Restore functions that were replaced since `read_functions`; return their names, or an empty text."""
    changes = []
    for (owner, name), old in zip(_FUNCTIONS, before, strict=True):
        if _unwrap(vars(owner).get(name)) is not _unwrap(old):
            setattr(owner, name, old)
            prefix = f"{owner.__module__}." if isinstance(owner, type) else ""
            changes.append(f"{prefix}{owner.__name__}.{name}")
    return f"the function{'s' if len(changes) > 1 else ''} {', '.join(changes)}" if changes else ""


def _unwrap(function: Any) -> Any:
    """Return the function without PyTorch's own wrappers: it profiles `step` from the first optimizer on, and excludes
    some methods from compilation."""
    while (
        isinstance(function, FunctionType)
        and function.__code__.co_filename.startswith(_TORCH)
        and (inner := getattr(function, "__wrapped__", None)) is not None
    ):
        function = inner
    return function


def restore_generators() -> AbstractContextManager[None]:
    """Context after which the generators of the CPU and of all GPUs are in the state that they had before."""
    # All GPUs are named: by default PyTorch warns on machines with several. Reading their states would start CUDA.
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.random.fork_rng(range(torch.cuda.device_count()) if started else ())

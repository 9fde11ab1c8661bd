"""A device without hardware, `pretend`: values lie on the CPU, but operations refuse to mix the two, as on a GPU.

Tensors on it wrap CPU tensors. `use` yields a list of `Synchronization`, to which each operation is added that would
make the CPU wait for a GPU: a copy without `non_blocking` in either direction, and a result whose size or value the CPU
reads. Kernels, streams and memory of a GPU are not imitated: only devices and synchronizations are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from gradhomog.rows import arithmetic

NAME = "pretend"
ROOT = str(Path(__file__).parent.parent)
COPIES = {function.__code__ for function in (arithmetic.to_device, arithmetic.task_index, arithmetic.to_cpu)}
aten = torch.ops.aten

# According to their documentation these synchronize: LAPACK's error code is read, or sizes depend on values.
SYNCHRONIZING = {
    "equal", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq", "_linalg_eigvals",
    "repeat_interleave", "bincount",
}  # fmt: skip
FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray}


class Synchronization(NamedTuple):
    """An operation for which the CPU waits, and the innermost function of the repository that calls it."""

    operation: str
    caller: str


class PretendTensor(Tensor):
    """A tensor on the device; `values` is on the CPU."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> PretendTensor:
        wrapper: PretendTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, values.shape, strides=values.stride(), storage_offset=values.storage_offset(), dtype=values.dtype,
            layout=values.layout, device=torch.device(NAME, 0),
        )  # fmt: skip
        wrapper.values = values
        return wrapper

    def __repr__(self) -> str:
        return f"{self.values!r} on {NAME}"

    # PyTorch copies from and to lists without a call of `__torch_dispatch__`.

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, **options}).to(self.device)

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_without_lists(index), value)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on the device {NAME!r} outside of `use`")


class PretendGenerator(torch._C.Generator):
    """A generator on the device."""

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)


class _Operations(TorchDispatchMode):
    """Run operations on the wrapped values, record synchronizations, and refuse operands of two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Synchronization] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves: list[Any] = []
        _mapped(leaves.append, (*args, *kwargs.values()))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        pretend = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
        others = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor)]
        to_pretend, device = bool(pretend), kwargs.get("device")
        if device is not None:
            to_pretend = torch.device(device).type == NAME
            kwargs["device"] = torch.device("cpu") if to_pretend else device
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "copy_"):
            from_pretend = isinstance(args[1 if name == "copy_" else 0], PretendTensor)
            to_pretend = isinstance(args[0], PretendTensor) if name == "copy_" else to_pretend
            blocking = not (kwargs.get("non_blocking") or args[2:] == (True,))
            if from_pretend != to_pretend and (blocking or from_pretend):
                self._record("copy to the CPU" if from_pretend else "copy to the device")
        elif name == "_local_scalar_dense" and pretend:
            to_pretend = False
            self._record("number")
        elif pretend:
            self._check_devices(func, args, others)
            if name in ("index", "index_put", "index_put_"):
                waits = any(index is not None and index.dtype == torch.bool for index in args[1])
            else:
                waits = name in SYNCHRONIZING or torch.Tag.dynamic_output_shape in func.tags
            if waits:
                self._record(name)
        found = func(*_mapped(_values, args), **{name: _mapped(_values, value) for name, value in kwargs.items()})
        if torch.Tag.inplace_view in func.tags:  # such as `squeeze_`: the wrapper changes its shape too
            with no_dispatch():
                func(*args, **kwargs)
        same = {id(_values(tensor)): tensor for tensor in tensors}  # in-place operations return their argument

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return same.get(id(leaf), PretendTensor(leaf) if to_pretend else leaf)

        return _mapped(wrap, found)

    def _check_devices(self, func: Any, args: Any, others: list[Tensor]) -> None:
        """Raise for operands on the CPU, except numbers in elementwise operations, and indices (which are copied)."""
        if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) and isinstance(args[0], PretendTensor):
            indices = [index for index in args[1] if index is not None and not isinstance(index, PretendTensor)]
            if indices:
                self._record("copy to the device")
            others = [tensor for tensor in others if not any(tensor is index for index in indices) and tensor.dim()]
        elementwise = torch.Tag.pointwise in func.tags
        if wrong := [tuple(tensor.shape) for tensor in others if tensor.dim() > 0 or not elementwise]:
            raise RuntimeError(f"{func}: operands on {NAME} and on the CPU; the latter have shapes {wrong}")

    def _record(self, operation: str) -> None:
        frame = sys._getframe(1)
        while frame.f_back and (
            not frame.f_code.co_filename.startswith(ROOT)
            or frame.f_code.co_filename == __file__
            or frame.f_code in COPIES
        ):
            frame = frame.f_back
        path = Path(frame.f_code.co_filename)
        self.found.append(Synchronization(operation, f"{path.parent.name}/{path.stem}.{frame.f_code.co_name}"))


def synchronizations() -> list[Synchronization]:
    """Return the list that the innermost `use` yielded."""
    [*_, operations] = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, _Operations)]
    return operations.found


class _Constructors(TorchFunctionMode):
    """Copy data of Python to the device by `to`, because PyTorch hides that copy from `TorchDispatchMode`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in FROM_DATA and torch.device(kwargs.get("device") or "cpu").type == NAME:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if (generator := kwargs.get("generator")) is not None:
            like = args[0].device if args and isinstance(args[0], Tensor) else "cpu"
            device = torch.device(kwargs.get("device") or like)
            if generator.device.type != device.type:
                raise RuntimeError(f"{func}: a generator on {generator.device} for a tensor on {device}")
        return func(*args, **kwargs)


def _without_lists(index: Any) -> tuple[Any, ...]:
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(torch.tensor(part).to(NAME) if isinstance(part, list) else part for part in parts)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the tensors and numbers of an operation's arguments or result, also in (nested) lists.

    `torch.utils._pytree` does this too, and took 40 % of the time of the tests on the device.
    """
    if not isinstance(value, list | tuple):
        return function(value)
    return type(value)([_mapped(function, part) for part in value])


def _values(leaf: object) -> object:
    return leaf.values if isinstance(leaf, PretendTensor) else leaf


class _AnyGenerator(type):
    """Replaces the class `torch.Generator`, which cannot be called with this device."""

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return PretendGenerator() if torch.device(device).type == NAME else torch._C.Generator(device)

    def __instancecheck__(cls, found: object) -> bool:
        return isinstance(found, torch._C.Generator)


class _Generator(metaclass=_AnyGenerator):
    pass


def register() -> None:
    """Register the device in PyTorch, for the rest of the process."""
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    class Module(_DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

        # `fork_rng` saves the generators of all devices; this one has no global generator.
        def get_rng_state(self, device: object) -> Tensor:
            return torch.empty(0)

        def set_rng_state(self, state: Tensor, device: object) -> None:
            pass

    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())


@contextmanager
def use() -> Iterator[list[Synchronization]]:
    """Make the device usable; yields the list of synchronizations, which grows."""
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # modes are per thread
        stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
        stack.enter_context(mock.patch.object(arithmetic, "READ_BEFORE_RETURN", {NAME}))
        operations = stack.enter_context(_Operations())
        stack.enter_context(_Constructors())
        yield operations.found

"""NumPy arrays of pickles, created from the arguments that a pickle passes to NumPy's functions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class PickledArray:
    """An array of a pickle; `values` is None until its instructions are complete."""

    values: NDArray[Any] | None = None


@dataclass(frozen=True)
class Bytes:
    """Bytes of the file, as a view."""

    view: NDArray[np.uint8]
    text: bool = False  # UTF-8 text, which holds the bytes of an array in protocol 2 of Python 3


@dataclass(frozen=True)
class Name:
    """A function or type of NumPy that the interpreter replaces by its own."""

    name: str


@dataclass
class Type:
    """Type of the elements of an array."""

    code: str
    order: str = "|"

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order.replace("|", "") + self.code)


NAMES = {
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
    **{f"{module} bytes": "bytes" for module in ("__builtin__", "builtins")},
    **{f"numpy.{core}.multiarray {name}": name for core in ("core", "_core") for name in ("_reconstruct", "scalar")},
    **{f"numpy.{core}.numeric _frombuffer": "_frombuffer" for core in ("core", "_core")},
}
"""The names that pickles of arrays refer to, in NumPy 1 and 2."""


def find_name(module: object, attribute: object) -> Name | None:
    """Return the function or type that a pickle refers to; None if it is not one of NumPy's for arrays."""
    known = NAMES.get(f"{module} {attribute}") if isinstance(module, str) and isinstance(attribute, str) else None
    return None if known is None else Name(known)


def call(function: object, arguments: object, max_bytes: int) -> Any:
    """Return the result of NumPy's function for arguments from a pickle, without calling it.

    Raises:
        TypeError, ValueError: the arguments are not those that NumPy writes.
    """
    if not isinstance(function, Name) or type(arguments) is not tuple:
        raise TypeError("a call of an object that is not a function of NumPy")
    match function.name, arguments:
        case "_reconstruct", (Name("ndarray"), tuple(), _):
            return PickledArray()
        case "dtype", (str(code), *_):
            if not re.fullmatch(r"[<>|=]?[biuf][1248]", code):
                raise TypeError(f"an array of type {code[:20]!r}, which is not a type of numbers")
            return Type(code[-2:], code[0] if code[0] in "<>" else "|")
        case "_frombuffer", (data, Type() as kind, tuple(shape), str(order)):
            return PickledArray(_values(data, kind, shape, fortran=order == "F"))
        case "scalar", (Type() as kind, data):
            return _values(data, kind, (), fortran=False).item()
        case "bytes", ():  # the values of an array without elements, in protocol 2
            return Bytes(np.empty(0, np.uint8))
        case "encode", (str(text), "latin1"):
            return Bytes(np.frombuffer(text.encode("latin-1"), np.uint8))
        case "encode", (Bytes(text=True) as long, "latin1"):
            if len(long.view) > max_bytes:
                raise ValueError(f"text of {len(long.view):,} bytes; `max_bytes` allows {max_bytes:,}")
            return Bytes(np.frombuffer(long.view.tobytes().decode("utf-8").encode("latin-1"), np.uint8))
    raise TypeError(f"`{function.name}` with unexpected arguments")


def build(target: object, state: object) -> None:
    """Set the state of an array or of a type of elements.

    Raises:
        TypeError, ValueError: the state is not the one that NumPy writes.
    """
    match target, state:
        case PickledArray(), (int(), tuple(shape), Type() as kind, bool() | int() as fortran, data):
            target.values = _values(data, kind, shape, fortran=bool(fortran))
        case Type(), (int(), "<" | ">" | "|" | "=" as order, None, None, None, *_):
            target.order = order if order in "<>" else "|"
        case _:
            raise TypeError("a state of an object that is not an array of numbers")


def _values(data: Any, kind: Type, shape: tuple[Any, ...], *, fortran: bool) -> NDArray[Any]:
    if isinstance(data, str):  # short text of Python 2
        data = Bytes(np.frombuffer(data.encode("latin-1"), np.uint8))
    if not isinstance(data, Bytes) or data.text:
        raise TypeError("the values of an array are not bytes")
    if not all(type(side) is int and side >= 0 for side in shape):
        raise TypeError("the shape of an array is not a tuple of integers")
    needed = math.prod(shape) * kind.dtype.itemsize
    if needed != len(data.view):
        raise ValueError(f"an array of shape {shape} declares {needed:,} bytes and holds {len(data.view):,}")
    return data.view.view(kind.dtype).reshape(shape, order="F" if fortran else "C")

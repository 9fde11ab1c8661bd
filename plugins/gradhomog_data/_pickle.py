"""Read arrays from pickles of unknown origin, in a child process with limits on memory and time.

A pickle is a program for a small stack machine, whose instructions can import and call any function of Python, and
create objects that are much larger than the file. Here, a child process runs Python's `Unpickler` and writes the arrays
as `.npz`, which the caller reads within the limits of `npz`. It differs from `pickle.load`:

1. The only names are those that NumPy writes for arrays of numbers, and each stands for a class of this module. A
   reference to any other name is an error; nothing is imported, and no function of NumPy receives an argument of the
   pickle before its type is checked: NumPy's own `__setstate__` trusts the layout that a pickle declares.
2. The memory (on Linux) and the time of the child are limited, by the operating system: for any content, and in sum
   over all instructions.
3. Text of Python 2 is read as Latin-1.
"""

import os
import pickle
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gradhomog import DataError, files

MEMORY_BYTES, MEMORY_FACTOR = 2**29, 4
"""Limit on the memory of the child: 512 MiB, and four times the file, as arrays written as text (protocol 2) need."""

SECONDS, BYTES_PER_SECOND = 60, 2**23
"""Limit on its time: one minute, and a second for 8 MiB, on a slow network disk."""


@contextmanager
def open_pickle(
    path: Path, keys: tuple[str, ...], max_bytes: int = files.MAX_BYTES, advice: str = ""
) -> Iterator[files.NpzFile]:
    """Read the entries `keys` of a dictionary: arrays by name, and those of a dictionary as `key/name`.

    Lists of integers become arrays. Other entries of the dictionary are ignored.

    Args:
        max_bytes: limit on the arrays that are read; a file of more than twice as many bytes is not read.
        advice: last sentence of the message if that limit is exceeded, with a remedy for the user.

    Raises:
        DataError: the file is missing, damaged or too large, refers to anything but arrays, or exceeds the limits of
            memory or time.
    """
    try:
        with files.open_regular(path, 2 * max_bytes, advice) as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file.") from error
    memory, seconds = MEMORY_BYTES + MEMORY_FACTOR * size, SECONDS + size // BYTES_PER_SECOND
    # `-P`: no module is imported from the working folder, which may be the one with the pickle.
    command = [sys.executable, "-P", "-m", __name__, str(path), str(memory), str(seconds), *keys]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder) / "arrays.npz"
        try:
            done = subprocess.run([*command, str(arrays)], env=environment, capture_output=True, timeout=2 * seconds)
        except subprocess.TimeoutExpired as error:
            raise DataError(f"{path}: is not read within {2 * seconds} seconds. Copy it to a faster disk.") from error
        if done.returncode:
            found = done.stdout.decode(errors="replace")[:500].rstrip(".")
            raise DataError(
                f"{path}: {found or f'needs more than {memory:,} bytes of memory or {seconds} seconds'}. Only arrays "
                "of numbers, lists, tuples, dictionaries, numbers and text are read. Download it again."
            )
        with zipfile.ZipFile(arrays) as archive:
            yield files.NpzFile(path, archive, max_bytes, advice)


# -- in the child process ----------------------------------------------------------------------------------------------


class _Type:
    """The type of the elements of an array: a boolean, an integer or a float."""

    def __init__(self, code: str, *_: object) -> None:
        if not re.fullmatch(r"[<>|=]?[biuf][1248]", code):
            raise TypeError(f"an array of type {code[:20]!r}, which is not a type of numbers")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """An array; `values` are set when its instructions are complete."""

    values: NDArray[Any]

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        # Text is the form of bytes in Python 2.
        data = data.encode("latin-1") if isinstance(data, str) else data
        self.values = np.frombuffer(data, kind.dtype).reshape(shape, order="F" if fortran else "C")


def _from_buffer(data: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", data))
    return array


def _scalar(kind: _Type, data: bytes | str) -> Any:
    return _from_buffer(data, kind, (), "C").values.item()  # type: ignore[arg-type]


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"text in the encoding {encoding!r}")
    return text.encode(encoding)


_NAMES = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "_codecs.encode": _encode,
    "__builtin__.bytes": bytes,
    "builtins.bytes": bytes,
    **{f"numpy.{core}.multiarray._reconstruct": _Array for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _from_buffer for core in ("core", "_core")},
}
"""The names that pickles of arrays refer to, in NumPy 1 and 2."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NAMES:
            raise pickle.UnpicklingError(f"refers to `{module[:80]}.{name[:80]}`, which is never imported")
        return _NAMES[f"{module}.{name}"]


def _select(content: Any, keys: list[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of some entries by name."""
    if not isinstance(content, dict) or not {*keys} <= content.keys():
        found = (
            f"the keys {', '.join(map(repr, [*content][:8]))}" if isinstance(content, dict) else type(content).__name__
        )
        raise ValueError(f"must be a dictionary with {' and '.join(f'`{key}`' for key in keys)}; found {found}")
    entries: dict[str, Any] = {}
    for key in keys:
        value = content[key]
        named = {f"{key}/{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
        if isinstance(value, dict) and len(named) < len(value):
            raise ValueError(f"`{key}` has two keys of the same text. Classes need different names")
        entries |= named
    return {name: _values(name, value) for name, value in entries.items()}


def _values(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, list) and all(type(item) is int for item in value):
        return np.array(value, dtype=np.int64)
    raise ValueError(f"{name!r} must be an array or a list of integers; got a {type(value).__name__}")


def _limit(memory: int, seconds: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # the child also ends if its parent was killed
    if sys.platform == "linux":  # macOS does not enforce it
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _main(path: str, memory: str, seconds: str, *rest: str) -> NoReturn:
    """Write the arrays of a pickle to a file; print the reason and exit with code 1 if there are none."""
    *keys, output = rest
    _limit(int(memory), int(seconds))
    try:
        with open(path, "rb") as file:
            arrays = _select(_Unpickler(file, encoding="latin1").load(), keys)
        np.savez(output, **arrays)  # type: ignore[arg-type]
    except MemoryError:
        sys.exit(1)
    except Exception as error:
        reason = (
            str(error) if type(error) in (ValueError, pickle.UnpicklingError) else f"{type(error).__name__}: {error}"
        )
        sys.stdout.buffer.write(reason.encode(errors="backslashreplace"))
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Read pickles of NumPy arrays from untrusted sources as data: no code of a pickle is ever executed.

A pickle is a program for a small stack machine, whose instructions can import and call any function of Python. This
module interprets the instructions itself. It differs from `pickle.load`:

1. Only lists, tuples, dictionaries, numbers, text, bytes and NumPy arrays of numbers are created. A reference to any
   other name is an error; nothing is imported or called.
2. The values of arrays are not copied: they are views on the mapped file, so that a file of 1 GB takes no memory.
3. The number of instructions is limited, as each may create an object that is larger than the instruction.
4. Protocols 2 to 5, of Python 2 and 3. Text of Python 2 is read as Latin-1.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.errors import DataError
from gradhomog.experiments.data.npz import MAX_BYTES
from gradhomog.experiments.data.pickled_arrays import Bytes, build, call, find_name

MAX_INSTRUCTIONS = 4_000_000
"""Instructions of one pickle; 38,400 labelled images take about 100,000."""

_TEXT_BYTES = 2**16
"""Text up to this length is decoded at once; longer text can only hold the values of an array."""

_ADVICE = "Only NumPy arrays of numbers, lists, tuples, dictionaries, numbers and text are read."


_MARK = object()


def read_pickle(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Return the content of a pickle; arrays are `PickledArray` objects.

    Args:
        path: the file.
        max_bytes: limit in bytes on arrays that must be copied because the pickle holds them as text.

    Raises:
        DataError: the file is missing or damaged, or contains anything but arrays and plain data.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file.") from error
    except ValueError as error:  # a file of no bytes cannot be mapped
        raise DataError(f"{path}: is empty. Copy or download it again.") from error
    try:
        return _Machine(path, mapped, max_bytes).run()
    except DataError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, AttributeError, MemoryError) as error:
        raise DataError(f"{path}: is not a pickle of arrays, or it is damaged ({error}). Download it again.") from error


class _Machine:
    """The stack machine of pickles, restricted to data."""

    def __init__(self, path: Path, mapped: mmap.mmap, max_bytes: int) -> None:
        self._path, self._mapped, self._max_bytes = path, mapped, max_bytes
        self._position = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        if self._mapped[:1] != b"\x80":
            raise self._error("does not begin as a pickle of protocol 2 to 5; it may be a web page or another format")
        for _ in range(MAX_INSTRUCTIONS):
            code = self._take(1)
            if code == b".":
                return self._stack.pop()
            if code not in _INSTRUCTIONS:
                raise self._error(f"has the instruction {code!r} at byte {self._position - 1}, which is never executed")
            _INSTRUCTIONS[code](self)
        raise self._error(f"has more than {MAX_INSTRUCTIONS:,} instructions")

    def _error(self, reason: str) -> DataError:
        return DataError(f"{self._path}: {reason}. {_ADVICE}")

    def _take(self, count: int) -> bytes:
        start, self._position = self._position, self._position + count
        if self._position > len(self._mapped):
            raise DataError(
                f"{self._path}: is cut off: it ends at byte {len(self._mapped):,}, and {count:,} bytes are declared at "
                f"byte {start:,}. Download it again."
            )
        return self._mapped[start : self._position]

    def _number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(width), "little", signed=signed)

    def _view(self, width: int) -> NDArray[np.uint8]:
        """A view of as many bytes as the next `width` bytes declare."""
        count = self._number(width)
        start = self._position
        if start + count > len(self._mapped):
            self._take(count)  # raises
        self._position += count
        return np.frombuffer(self._mapped, np.uint8, count, start) if count else np.empty(0, np.uint8)

    def _line(self) -> str:
        end = self._mapped.find(b"\n", self._position, self._position + 256)
        if end < 0:
            raise self._error(f"has a name without an end at byte {self._position}")
        return self._take(end + 1 - self._position)[:-1].decode("utf-8", "replace")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def push_text(self, width: int) -> None:
        view = self._view(width)
        self.push(view.tobytes().decode("utf-8", "surrogatepass") if len(view) <= _TEXT_BYTES else Bytes(view, True))

    def push_python2_text(self, width: int) -> None:
        view = self._view(width)
        self.push(view.tobytes().decode("latin-1") if len(view) <= _TEXT_BYTES else Bytes(view))

    def push_bytes(self, width: int) -> None:
        self.push(Bytes(self._view(width)))

    def push_number(self, width: int, *, signed: bool = False) -> None:
        self.push(self._number(width, signed=signed))

    def push_long(self, width: int) -> None:
        count = self._number(width)
        if count > 8:
            raise self._error(f"has an integer of {count} bytes")
        self.push(self._number(count, signed=True))

    def skip(self, count: int) -> None:
        self._take(count)

    def protocol(self) -> None:
        if not 2 <= (version := self._number(1)) <= 5:
            raise self._error(f"has protocol {version}; 2 to 5 are read")

    def put(self, width: int) -> None:
        self._memo[self._number(width)] = self._stack[-1]

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, width: int) -> None:
        self.push(self._memo[self._number(width)])

    def _to_mark(self) -> list[Any]:
        start = len(self._stack) - 1
        while self._stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise ValueError("an instruction needs a mark on the stack")
        values = self._stack[start + 1 :]
        del self._stack[start:]
        return values

    def make_tuple(self, count: int | None) -> None:
        if count is None:
            self.push(tuple(self._to_mark()))
            return
        if count > len(self._stack):
            raise ValueError("the stack has too few values")
        values = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        self.push(values)

    def append(self, *, many: bool) -> None:
        values = self._to_mark() if many else [self._stack.pop()]
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError("values are appended to an object that is not a list")
        target.extend(values)

    def set_items(self, *, many: bool) -> None:
        values = self._to_mark() if many else [self._stack.pop(-2), self._stack.pop()]
        target = self._stack[-1]
        if type(target) is not dict:
            raise TypeError("items are set in an object that is not a dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):  # the hash of a deeply nested tuple would exhaust the C stack
                raise TypeError("a key is neither text nor an integer")
            target[key] = value

    def name(self, *, from_stack: bool) -> None:
        if from_stack:
            attribute, module = self._stack.pop(), self._stack.pop()
        else:
            module, attribute = self._line(), self._line()
        known = find_name(module, attribute)
        if known is None:
            raise self._error(f"refers to `{str(module)[:80]}.{str(attribute)[:80]}`, which is never imported")
        self.push(known)

    def call(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self.push(call(function, arguments, self._max_bytes))

    def build(self) -> None:
        state = self._stack.pop()
        build(self._stack[-1], state)


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol,
    b"\x95": lambda m: m.skip(8),  # length of a frame
    b"(": lambda m: m.push(_MARK),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"J": lambda m: m.push_number(4, signed=True),
    b"K": lambda m: m.push_number(1),
    b"M": lambda m: m.push_number(2),
    b"\x8a": lambda m: m.push_long(1),
    b"X": lambda m: m.push_text(4),
    b"\x8c": lambda m: m.push_text(1),
    b"\x8d": lambda m: m.push_text(8),
    b"T": lambda m: m.push_python2_text(4),
    b"U": lambda m: m.push_python2_text(1),
    b"B": lambda m: m.push_bytes(4),
    b"C": lambda m: m.push_bytes(1),
    b"\x8e": lambda m: m.push_bytes(8),
    b"\x96": lambda m: m.push_bytes(8),
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"t": lambda m: m.make_tuple(None),
    b"\x85": lambda m: m.make_tuple(1),
    b"\x86": lambda m: m.make_tuple(2),
    b"\x87": lambda m: m.make_tuple(3),
    b"a": lambda m: m.append(many=False),
    b"e": lambda m: m.append(many=True),
    b"s": lambda m: m.set_items(many=False),
    b"u": lambda m: m.set_items(many=True),
    b"q": lambda m: m.put(1),
    b"r": lambda m: m.put(4),
    b"\x94": lambda m: m.memoize(),
    b"h": lambda m: m.get(1),
    b"j": lambda m: m.get(4),
    b"c": lambda m: m.name(from_stack=False),
    b"\x93": lambda m: m.name(from_stack=True),
    b"R": _Machine.call,
    b"b": _Machine.build,
    b"\x98": lambda m: m.skip(0),  # the buffer before is read-only, as all views are
}
"""The instructions of protocols 2 to 5 that pickles of arrays and plain data use."""

"""Read files of unknown origin: regular files within a limit on their size, text, and arrays of `.npz` files.

A compressed file of 3 MB can declare arrays of many GiB. Therefore the header of each array, at most 64 KiB, is read
first; it contains type and shape. `np.load` has no such limit. This reader differs from `np.load`:

1. The sum of the declared sizes of the arrays that are read is limited.
2. Only arrays of numbers, booleans and text are read, never pickled objects or records.
3. Members must be stored or deflated, as NumPy writes them; bzip2 and LZMA expand without a limit.
"""

import codecs
import io
import math
import stat
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gradhomog.errors import DataError, GradhomogError

__all__ = ["MAX_BYTES", "Header", "NpzFile", "open_npz", "open_regular", "read_text"]

MAX_BYTES = 2**32
"""Default limit, in bytes, on the arrays that are read from one file: 4 GiB, or 200,000 colour images of 84 pixels."""

_HEADER_BYTES = 2**16
"""Bytes of a member that are read for its header; NumPy itself reads headers of up to 10,000 characters."""


def open_regular(
    path: Path, max_bytes: int | None = None, advice: str = "", error: type[GradhomogError] = DataError
) -> BufferedReader:
    """Open a file for reading, after its type and size are checked.

    The check precedes `open`, which would wait for a writer of a FIFO and start some devices.

    Args:
        max_bytes: limit on the size of the file; None for readers that read a part of it.
        advice: last sentence of the message if the file is too large, with a remedy for the user.
        error: class of the error.

    Raises:
        error: the file is a folder, FIFO, device or socket, or it is too large.
        OSError: there is no such file, or it cannot be opened.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
        raise error(f"{path}: must be a regular file; got a {kinds.get(stat.S_IFMT(status.st_mode), 'device')}.")
    if max_bytes is not None and status.st_size > max_bytes:
        raise error(f"{path}: has {status.st_size:,} bytes; at most {max_bytes:,} bytes are read. {advice}".rstrip())
    return path.open("rb")


def read_text(
    path: Path, max_bytes: int | None = None, advice: str = "", error: type[GradhomogError] = DataError
) -> str:
    """Return the text of a UTF-8 file, without the byte-order mark that editors on Windows write.

    Args:
        max_bytes, advice, error: as for `open_regular`.

    Raises:
        error: as for `open_regular`; there is no such file, it cannot be read, or its text has another encoding.
    """
    try:
        with open_regular(path, max_bytes, advice, error) as file:
            content = file.read()
    except FileNotFoundError as cause:
        raise error(f"{path}: there is no such file.") from cause
    except GradhomogError:
        raise
    except (OSError, ValueError) as cause:  # ValueError: a path that contains NUL
        raise error(f"{path}: the file cannot be read: {getattr(cause, 'strerror', '') or cause}.") from cause
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        found = f"byte {cause.start} is {content[cause.start]:#04x}"
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            found += ", it may be UTF-16"
        raise error(
            f"{path}: must be UTF-8 text; {found}. Save it as UTF-8, or convert it: iconv -f ENCODING -t UTF-8."
        ) from cause


@dataclass(frozen=True)
class Header:
    """The declared type and shape of an array.

    Attributes:
        offset: number of bytes of the member before the values.
        nbytes: number of bytes of the values.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


class NpzFile:
    """The arrays of an open `.npz` file by name, each decompressed when it is read.

    Args:
        path: path of the file, for messages.
        archive: the open file.
        max_bytes: limit on the sum of the declared sizes of the arrays that are read.
        advice: last sentence of the message if that limit is exceeded, with a remedy for the user.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile, max_bytes: int, advice: str) -> None:
        self._path, self._archive = path, archive
        self._max_bytes, self._advice = max_bytes, advice
        self._members = {
            info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")
        }
        self._headers: dict[str, Header] = {}
        self._read_bytes = 0

    @property
    def names(self) -> list[str]:
        """Names of all arrays, sorted."""
        return sorted(self._members)

    def header(self, name: str) -> Header:
        """Return the declared type and shape of an array, from the first 64 KiB of its member.

        Raises:
            DataError: the array does not exist, its type is not supported, or the member is damaged.
        """
        if name not in self._headers:
            if name not in self._members:
                raise DataError(f"{self._path}: has no array {name!r}; found: {', '.join(self.names) or 'none'}.")
            info = self._members[name]
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise self._damaged(name, "must be stored or deflated, as `numpy.savez` writes it")
            with _describe_damage(self._path, self._advice), self._archive.open(info) as member:
                self._headers[name] = self._parse(name, member.read(_HEADER_BYTES))
        return self._headers[name]

    def read(self, name: str) -> NDArray[Any]:
        """Return the values of an array.

        Raises:
            DataError: as for `header`; or all arrays that were read need more than `max_bytes` together.
        """
        header = self.header(name)
        total = self._read_bytes + header.nbytes
        if total > self._max_bytes:
            before = f", after {self._read_bytes:,} bytes of other arrays" if self._read_bytes else ""
            raise DataError(
                f"{self._path}: array {name!r}, {header}, declares {header.nbytes:,} bytes{before}; at most "
                f"{self._max_bytes:,} bytes are read into memory. {self._advice}"
            )
        self._read_bytes = total
        with _describe_damage(self._path, self._advice), self._archive.open(self._members[name]) as member:
            values: NDArray[Any] = npy.read_array(member, allow_pickle=False)
            member.read(1)  # reach the end of the member, where zipfile compares the checksum
        codes = (
            np.frombuffer(values.tobytes(), f"{values.dtype.byteorder}u4") if values.dtype.kind == "U" else np.empty(0)
        )
        if (codes > sys.maxunicode).any():
            raise self._damaged(name, "holds text that is not valid Unicode")
        return values

    def _parse(self, name: str, start: bytes) -> Header:
        file = io.BytesIO(start)
        try:
            version = npy.read_magic(file)
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            shape, _, dtype = read(file)
        except Exception as error:  # the parser evaluates a literal: SyntaxError, MemoryError, RecursionError, ...
            raise self._damaged(name, f"its header cannot be read: {_first_line(error)}") from error
        header = Header(dtype, shape, file.tell())
        if dtype.hasobject:
            raise DataError(f"{self._path}: array {name!r} holds pickled objects, which are never loaded.")
        if dtype.kind not in "biufcSU" or not dtype.itemsize or min(shape, default=0) < 0:
            raise DataError(f"{self._path}: array {name!r} must hold numbers or text; got {header}.")
        stored = self._members[name].file_size - header.offset
        if header.nbytes != stored:
            raise self._damaged(name, f"declares {header.nbytes:,} bytes, {header}, and holds {stored:,}")
        return header

    def _damaged(self, name: str, reason: str) -> DataError:
        return DataError(f"{self._path}: cannot be read as .npz, it may be damaged (array {name!r}: {reason}).")


@contextmanager
def open_npz(path: Path, *, max_bytes: int = MAX_BYTES, advice: str = "Store fewer values.") -> Iterator[NpzFile]:
    """Open an `.npz` file of unknown content.

    Raises:
        DataError: the file is missing, damaged, or declares more than `max_bytes` bytes; also raised by reads within
            the context.
    """
    with ExitStack() as stack:
        with _describe_damage(path, advice):
            file = stack.enter_context(open_regular(path))
            if not zipfile.is_zipfile(file):
                raise DataError(f"{path}: is not an .npz file, or its end is cut off. Copy or download it again.")
            file.seek(0)
            archive = stack.enter_context(zipfile.ZipFile(file))
        yield NpzFile(path, archive, max_bytes, advice)


@contextmanager
def _describe_damage(path: Path, advice: str) -> Iterator[None]:
    """Convert the errors of a damaged archive (BadZipFile, struct.error, RuntimeError, ...) to `DataError`."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file.") from error
    except MemoryError as error:
        raise DataError(f"{path}: its arrays do not fit into memory. {advice}") from error
    except Exception as error:
        raise DataError(f"{path}: cannot be read as .npz, it may be damaged ({_first_line(error)}).") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

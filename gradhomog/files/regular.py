"""Open files of unknown origin: only regular files, within a limit on their size."""

from __future__ import annotations

import stat
from io import BufferedReader
from pathlib import Path

from gradhomog.errors import DataError, GradhomogError


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

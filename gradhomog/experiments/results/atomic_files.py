"""Atomic replacement of files: a process that is killed while writing leaves the previous file unchanged."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TEMPORARY = re.compile(r".+\.(csv|html|json|npz|png|pt|svg|toml)\..+-\d+\.tmp")


@contextmanager
def name_errors(path: Path) -> Iterator[None]:
    """Context whose errors name the file: of a full disk, the system reports only `[Errno 28]`."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end of the context, sync that file to disk and rename it to `path`.

    If the context raises, `path` is unchanged and the temporary file is removed. The folder of `path` must exist: a
    checkpoint must not create a folder again that a user has removed.
    """
    # The name is unique: two machines may write the same file of a shared folder at the same time.
    temporary = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        with name_errors(path):
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Atomically replace the content of a file."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of processes that were killed within `atomic_write`.

    The caller has the lock of the folder, without which no other process writes to it.
    """
    for path in folder.glob("*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)

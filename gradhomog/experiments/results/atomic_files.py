"""Atomic replacement of files: a process that is killed while writing leaves the previous file unchanged."""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TEMPORARY = re.compile(r".+\.(csv|html|json|npz|png|pt|svg|toml)\.(?P<host>.+)-(?P<process>\d+)\.tmp")

_WRITTEN_WITHIN = 24 * 3600
"""Seconds after which a temporary file of another machine is a leftover."""


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


def remove_leftovers(folder: Path, *, locked: bool) -> None:
    """Remove the temporary files of processes that were killed within `atomic_write`.

    Args:
        locked: no other process writes to the folder. Otherwise, files of living processes are kept.
    """
    for path in folder.glob("*.tmp"):
        with suppress(FileNotFoundError):  # its process has renamed it
            name = _TEMPORARY.fullmatch(path.name)
            if name and (locked or not _may_be_written(path, name["host"], name["process"])):
                path.unlink()


def _may_be_written(path: Path, host: str, process: str) -> bool:
    if host != socket.gethostname() or os.name != "posix":
        return time.time() - path.stat().st_mtime < _WRITTEN_WITHIN
    try:
        os.kill(int(process), 0)  # sends no signal
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a living process of another user
        pass
    return True

"""Files that are replaced in one step: a process that is killed while writing leaves the previous file."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TEMPORARY = re.compile(r".+\.(csv|html|json|npz|pt|toml)\..+-\d+\.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Within the context write to the path that it gives; at its end that file is on disk and takes the place of
    `path`. If the context raises, `path` is as it was, and the temporary file is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two machines may write the same file of a shared folder at the same time.
    temporary = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(path: Path, content: bytes) -> None:
    """Replace a file by these bytes."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed in `replacing` left behind."""
    for path in folder.glob("*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)

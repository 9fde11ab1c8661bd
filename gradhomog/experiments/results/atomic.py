"""Files that are replaced in one step: whoever is killed while writing leaves the previous one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Within the context write to the path that it gives; at its end that file takes the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    yield temporary
    os.replace(temporary, path)

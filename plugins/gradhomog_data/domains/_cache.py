"""Cache of arrays in the user's cache folder, shared between runs.

A failure of the cache (no folder, no space, a damaged file) costs time, but never stops a run.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog import DataError, files

Arrays = dict[str, NDArray[Any]]


def cache_folder() -> Path:
    """Return the folder `gradhomog` under $XDG_CACHE_HOME, or else under the cache folder of the operating system."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "gradhomog"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "gradhomog" / "Cache"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "gradhomog"


def load_or_make(stem: str, key: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays stored under `key`, or make and store them.

    `key` must contain everything that determines the arrays, versions included; its digest is in the file's name.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    try:
        path = cache_folder() / f"{stem}-{digest[:32]}.npz"
    except RuntimeError:  # `Path.home()`: the user has no home folder
        return make()
    with contextlib.suppress(DataError), files.open_npz(path) as stored:
        return {name: stored.read(name) for name in stored.names}
    arrays = make()
    with contextlib.suppress(OSError):
        _write(path, arrays)
    return arrays


def _write(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Write a temporary file, then rename it: other processes see the whole file or none.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as folder:
        # uncompressed: reading is ten times faster, and compression saves only a third on textured pictures
        np.savez(Path(folder) / path.name, **arrays)  # type: ignore[arg-type]
        os.replace(Path(folder) / path.name, path)

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

    `key` must contain everything that determines the arrays, versions included. The key is stored with the arrays and
    compared on reading, so that the arrays are made again after a collision of file names, or if the file has other
    content.
    """
    text = json.dumps(key, sort_keys=True)
    try:
        path = cache_folder() / f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"
    except RuntimeError:  # `Path.home()`: the user has no home folder
        return make()
    if (stored := _read(path, text)) is not None:
        return stored
    arrays = make()
    with contextlib.suppress(OSError):
        _write(path, text, arrays)
    return arrays


def _read(path: Path, text: str) -> Arrays | None:
    try:
        with files.open_npz(path) as stored:
            arrays = {name: stored.read(name) for name in stored.names}
    except DataError:
        return None
    stored_key = arrays.pop("key", None)
    return arrays if stored_key is not None and str(stored_key) == text else None


def _write(path: Path, text: str, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Write a temporary file, then rename it: other processes see the whole file or none.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as folder:
        # uncompressed: reading is ten times faster, and compression saves only a third on textured pictures
        named: dict[str, Any] = {"key": np.array(text), **arrays}
        np.savez(Path(folder) / path.name, **named)
        os.replace(Path(folder) / path.name, path)

"""Arrays kept between runs in the user's cache folder.

A cache is a convenience: whatever goes wrong with it (no folder, no space, a damaged file) costs time, never a run.
"""

from __future__ import annotations

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

from gradhomog.errors import DataError
from gradhomog.experiments.data.npz import open_npz

Arrays = dict[str, NDArray[Any]]


def cache_folder() -> Path:
    """The folder for `gradhomog` under $XDG_CACHE_HOME, or else where the operating system keeps caches."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "gradhomog"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "gradhomog" / "Cache"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "gradhomog"


def cached(stem: str, key: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays stored under `key`, or make and store them.

    `key` must hold everything that decides the arrays, versions included. It is stored beside them and compared, so a
    collision of the file's name, or a file of other content under that name, is noticed and rendered anew.
    """
    text = json.dumps(key, sort_keys=True)
    try:
        path = cache_folder() / f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"
    except RuntimeError:  # Path.home() of a user without one
        return make()
    if (found := _read(path, text)) is not None:
        return found
    arrays = make()
    with contextlib.suppress(OSError):
        _write(path, text, arrays)
    return arrays


def _read(path: Path, text: str) -> Arrays | None:
    try:
        with open_npz(path) as stored:
            arrays = {name: stored.read(name) for name in stored.names}
    except DataError:
        return None
    own = arrays.pop("key", None)
    return arrays if own is not None and str(own) == text else None


def _write(path: Path, text: str, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved into place: another process sees the whole file or none.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".partial-", suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            # uncompressed: reading is ten times faster, and textured pictures shrink by a third only
            named: dict[str, Any] = {"key": np.array(text), **arrays}
            np.savez(file, **named)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise

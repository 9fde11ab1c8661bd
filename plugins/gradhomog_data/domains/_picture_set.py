"""Pictures of a data set, listed by class, and decoded once into an array in the cache folder that later runs map.

Decoding and resizing 10,000 photographs takes about a minute; a mapped array is ready in milliseconds, is shared by
all processes of a machine, and takes no more memory than the pages in use.
"""

import contextlib
import errno
import functools
import hashlib
import importlib.metadata
import io
import math
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.lib import format as npy
from numpy.typing import NDArray
from tqdm import tqdm

from gradhomog import DamagedCacheWarning, DataError
from gradhomog_data.domains._cache import cache_folder
from gradhomog_data.domains._pictures import check_memory, read_picture
from gradhomog_data.domains.class_images import ClassImages

Blocks = Callable[[int], Iterable[NDArray[np.uint8]]]
"""A function of a number that returns the pictures from this number on, in blocks `[n, size, size, 3]`."""

CACHED_FROM = 256
"""Number of pictures from which decoded pictures are cached; fewer are decoded in about a second, in memory."""

_VERSION = 2
"""Version of the decoding (crop, filter, conversion of colours) and of the file. A change invalidates cached files."""

_DIGEST_BYTES = 64
"""Bytes after the array in a cached file: the SHA-256 of the pictures, as text."""

_BLOCK_BYTES = 2**24
"""Bytes of decoded pictures that are written at a time: an interrupted pass loses at most one block, a few seconds."""

_RESERVED_BYTES = 2**28
"""Free space that is left on the disk of the cache."""


def decode(source: Path, paths: Sequence[str], size: int, max_bytes: int) -> tuple[NDArray[np.uint8], str]:
    """Return picture files as `[n, size, size, 3]`, mapped from the cache folder or in memory if there are few,
    and their SHA-256.

    The digest is computed whenever pictures are decoded or mapped, and compared with the one at the end of the cached
    file. If they differ, a `DamagedCacheWarning` names the file, and the pictures are decoded again.

    The cached array is a function of path, size and time of change of each file, of the size in pixels, and of the
    versions of Pillow and of this module. An interrupted pass continues where it ended. Without a cache folder, or with
    too little space in it, pictures are decoded into memory.

    Raises:
        DataError: a picture cannot be read; or the pictures can be neither cached nor held in `max_bytes` of memory.
    """
    shape, remark = (len(paths), size, size, 3), ""
    blocks = functools.partial(_blocks, source, paths, shape)
    if len(paths) >= CACHED_FROM:
        digest = hashlib.sha256(f"{_VERSION}\t{size}\t{importlib.metadata.version('pillow')}".encode())
        for text in _identify(paths):
            digest.update(b"\n" + text.encode(errors="surrogatepass"))
        try:
            folder = cache_folder()
            return _cached(folder / f"pictures-{digest.hexdigest()[:32]}.npy", shape, blocks)
        # RuntimeError: the user has no home folder; NotImplementedError: the file system has no locks
        except (OSError, RuntimeError, NotImplementedError) as error:
            remark = f"They cannot be cached on disk either ({error}). "
    check_memory(source, shape, max_bytes, remark)
    pictures, done = np.empty(shape, dtype=np.uint8), 0
    for block in blocks(0):
        pictures[done : done + len(block)] = block
        done += len(block)
    return pictures, _digest(pictures)


def _cached(path: Path, shape: tuple[int, ...], blocks: Blocks) -> tuple[NDArray[np.uint8], str]:
    if (pictures := _map(path, shape)) is not None:
        return pictures
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # a second process waits instead of decoding the same pictures
        if (pictures := _map(path, shape)) is None:
            _write(path, shape, blocks)
            pictures = _map(path, shape)
    if pictures is None:
        raise OSError(errno.EIO, "the array that was written cannot be read", str(path))
    return pictures


def _map(path: Path, shape: tuple[int, ...]) -> tuple[NDArray[np.uint8], str] | None:
    if not path.exists():
        return None
    with contextlib.suppress(OSError, ValueError, EOFError):
        stored = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        with path.open("rb") as file:
            file.seek(-_DIGEST_BYTES, os.SEEK_END)
            expected = file.read().decode("ascii")
        if stored.dtype == np.uint8 and stored.shape == shape and _digest(stored) == expected:
            return stored, expected
    warnings.warn(DamagedCacheWarning(path), stacklevel=2)
    path.unlink(missing_ok=True)  # a second process, which waits for the lock, must not warn again
    return None


def _digest(pictures: NDArray[np.uint8]) -> str:
    return hashlib.sha256(pictures.data).hexdigest()


def _write(path: Path, shape: tuple[int, ...], blocks: Blocks) -> None:
    """Write the array picture by picture to a file beside `path`, then rename it."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    start, each = header.getvalue(), math.prod(shape[1:])
    partial = path.with_suffix(".partial")
    try:
        with partial.open("r+b" if partial.exists() else "w+b") as file:
            if file.read(len(start)) != start:
                file.seek(0)
                file.truncate()
                file.write(start)
            done = (file.seek(0, os.SEEK_END) - len(start)) // each
            file.truncate(len(start) + done * each)  # the last picture may be incomplete
            file.seek(0, os.SEEK_END)
            if shutil.disk_usage(path.parent).free < (shape[0] - done) * each + _RESERVED_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
            for block in blocks(done):
                file.write(block.tobytes())
                file.flush()
                os.fsync(file.fileno())
            file.seek(len(start))
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.write(digest.encode("ascii"))  # np.load ignores bytes after the array
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk; an interrupt keeps the file
        raise


def _blocks(source: Path, paths: Sequence[str], shape: tuple[int, ...], start: int) -> Iterable[NDArray[np.uint8]]:
    """Yield the pictures from number `start` on in blocks, with a progress bar after one second."""
    count = max(1, _BLOCK_BYTES // math.prod(shape[1:]))
    with tqdm(
        total=len(paths), initial=start, desc=f"decoding {source.name}", unit="picture", file=sys.stderr,
        delay=1, leave=False, dynamic_ncols=True, disable=None,
    ) as bar:  # fmt: skip
        while start < len(paths):
            pictures = []
            for path in paths[start : start + count]:
                pictures.append(read_picture(path, shape[1]))
                bar.update()
            yield np.stack(pictures)
            start += len(pictures)


def _identify(paths: Sequence[str]) -> Iterable[str]:
    """Yield path, size in bytes and time of change of each file: the key of decoded pictures."""
    here = os.getcwd()
    for path in paths:
        try:
            status = Path(path).stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error
        yield f"{os.path.join(here, path)}\t{status.st_size}\t{status.st_mtime_ns}"


@dataclass(frozen=True)
class PictureSet:
    """Pictures by class.

    Attributes:
        path: file or folder of the data set, for messages.
        name: name of the domain.
        groups: the paths of the pictures of each class.
        splits: the official split of each class, if there is one.
    """

    path: Path
    name: str
    groups: Mapping[str, Sequence[str]]
    splits: Mapping[str, str] | None = None

    def open(self, size: int, max_bytes: int) -> ClassImages:
        """Decode the pictures, or map those that were decoded before, grouped by class."""
        names = sorted(self.groups)
        paths = [path for name in names for path in self.groups[name]]
        images, sha256 = decode(self.path, paths, size, max_bytes)
        return ClassImages(
            self.name,
            images,
            np.repeat(np.arange(len(names)), [len(self.groups[name]) for name in names]),
            names,
            class_split=[self.splits[name] for name in names] if self.splits is not None else None,
            source=str(self.path),
            sha256=sha256,
        )

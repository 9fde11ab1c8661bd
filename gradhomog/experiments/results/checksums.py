"""Files with SHA-256 checksums: reading a damaged file raises an error and never returns another result."""

import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import atomic_files, events
from gradhomog.files import open_regular

HEADER = b"gradhomog checkpoint 1 sha256:"
_HEADER_BYTES = len(HEADER) + 65

_MEMORY_BYTES, _MEMORY_FACTOR = 2**28, 4
"""Limit on the memory of a checkpoint: 256 MiB, and four times the file. Loading takes twice the file, and tensors may
share their values."""

_OBJECT_BYTES = 512  # a tensor of PyTorch with its entry in a dictionary

_ADVICE = "Remove it to train this run from the start."


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint: a header line with the SHA-256 of the rest, then the output of `torch.save`."""
    content = _saved(state)
    atomic_files.write_bytes(path, HEADER + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


@contextmanager
def open_checkpoint(path: Path, kind: Any, content: bytes | None = None) -> Iterator[dict[str, Any]]:
    """Yield the state of a checkpoint, on the CPU, without executing code from the file.

    Args:
        kind: the `TypedDict` that describes the state.
        content: the `checkpoint_content` of the file, if another process has read it.

    Raises:
        ConfigError: the file is damaged or not a checkpoint, takes much more memory than its size, has an entry of the
            wrong type or range, or an entry does not fit within the context, as a state of another network.
    """
    content = checkpoint_content(path) if content is None else content
    try:
        state = _load(content)
        events.validate(state, kind, str(path), _ADVICE)
        yield state
    except MemoryError as cause:
        raise _damaged(path, f"it needs much more memory than its {len(content):,} bytes") from cause
    except Exception as cause:  # a state of another network raises various errors
        if isinstance(cause, ConfigError) and str(path) in str(cause):
            raise
        raise _damaged(path, f"{type(cause).__name__}: {cause}") from cause


def _load(content: bytes) -> Any:
    """Return the output of `torch.load`; its memory is limited by the size of the file, in which nothing is compressed.

    Raises:
        MemoryError: it needs more memory. ValueError: it is not a file of tensors and plain values.
    """
    import torch

    limit = _MEMORY_BYTES + _MEMORY_FACTOR * len(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(member.file_size for member in archive.infolist()) > limit:
            raise MemoryError
    with _limited_memory(limit):
        # States of generators must be on the CPU; modules and optimizers copy their states to their own device.
        try:
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as cause:  # its message is not repeated: it recommends `weights_only=False`
            raise ValueError("it contains other objects than tensors and plain values") from cause
    # Tensors and lists may repeat a few values without memory (stride 0, references), but their copies would not.
    size, pending = 0, [state]
    while pending:
        item = pending.pop()
        size += item.numel() * item.element_size() if isinstance(item, torch.Tensor) else _OBJECT_BYTES
        if size > limit:
            raise MemoryError
        pending += item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ()
    return state


@contextmanager
def _limited_memory(size: int) -> Iterator[None]:
    """Context in which this process can allocate `size` bytes; only Linux enforces it."""
    if sys.platform != "linux":
        yield
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft < 0 else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def checkpoint_content(path: Path) -> bytes:
    """Return the bytes of a checkpoint after its header: the output of `torch.save`.

    Raises:
        ConfigError: the file is damaged or not a checkpoint.
    """
    with open_regular(path, error=ConfigError) as file:
        header = file.readline(_HEADER_BYTES)
        content = file.read() if header.startswith(HEADER) else b""
    if header.rstrip(b"\n") != HEADER + hashlib.sha256(content).hexdigest().encode():
        raise _damaged(path, "its content does not match its SHA-256")
    return content


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path} is damaged or not a checkpoint: {reason}. {_ADVICE}")


def write_network(path: Path, state: Mapping[str, Any]) -> None:
    """Write a file for `torch.load`."""
    atomic_files.write_bytes(path, _saved(state))


def _saved(state: Mapping[str, Any]) -> bytes:
    import torch

    buffer = io.BytesIO()  # on a full disk, `torch.save` raises an obscure error instead of OSError
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(path, error=ConfigError) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, files: Mapping[str, str]) -> Iterator[str | None]:
    """Yield the error of each file of a folder that is missing or does not match its SHA-256, else None.

    Args:
        files: SHA-256 by path, relative to the folder.
    """
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{path} is missing."
        else:
            damaged = file_digest(path) != digest
            yield f"{path} is damaged: its content does not match its SHA-256." if damaged else None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with the format version and with its own SHA-256."""
    atomic_files.write_bytes(path, (json.dumps(signed(content), ensure_ascii=False, indent=1) + "\n").encode())


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the format version and with its own SHA-256, for `parse_json`."""
    written: dict[str, Any] = events.json_compatible({"version": events.VERSION, **content})
    return {**written, "sha256": content_digest(written)}


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Return the content of a file of `write_json`.

    Args:
        advice: last sentence of the error of a damaged file.

    Raises:
        ConfigError: the file is damaged, or of another format version. OSError: it cannot be read.
    """
    with open_regular(path, events.MAX_BYTES, error=ConfigError) as file:
        return parse_json(file.read(), str(path), advice)


def parse_json(text: str | bytes, where: str, advice: str) -> dict[str, Any]:
    """Return the content of a `signed` JSON object; `where` names its file. Raises `ConfigError` as `read_json`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"{where} is damaged: not valid JSON. {advice}") from cause
    digest = content.pop("sha256", None) if isinstance(content, dict) else None
    if digest is None or digest != content_digest(content):
        raise ConfigError(f"{where} is damaged: its content does not match its `sha256`. {advice}")
    events.check_version(content, where)
    return dict(content)


def content_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, independent of formatting and key order."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

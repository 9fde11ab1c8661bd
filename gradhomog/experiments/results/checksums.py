"""Files with SHA-256 checksums: reading a damaged file raises an error and never returns another result."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import atomic_files, events

HEADER = b"gradhomog checkpoint 1 sha256:"


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint: a header line with the SHA-256 of the rest, then the output of `torch.save`."""
    import torch

    buffer = io.BytesIO()  # on a full disk, `torch.save` raises an obscure error instead of OSError
    torch.save(dict(state), buffer)
    content = buffer.getvalue()
    atomic_files.write_bytes(path, HEADER + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint, on the CPU, without executing code from the file.

    Raises:
        ConfigError: the file is damaged or not a checkpoint.
    """
    import torch

    # States of generators must be on the CPU; modules and optimizers copy their states to their own device.
    state: dict[str, Any] = torch.load(io.BytesIO(checkpoint_content(path)), map_location="cpu", weights_only=True)
    return state


def checkpoint_content(path: Path) -> bytes:
    """Return the bytes of a checkpoint after its header: the output of `torch.save`.

    Raises:
        ConfigError: the file is damaged or not a checkpoint.
    """
    header, _, content = path.read_bytes().partition(b"\n")
    if header != HEADER + hashlib.sha256(content).hexdigest().encode():
        raise ConfigError(f"{path} is damaged or not a checkpoint. Remove it to train this run from the start.")
    return content


def write_network(path: Path, state: Mapping[str, Any]) -> str:
    """Write a file for `torch.load`; return its SHA-256."""
    import torch

    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    atomic_files.write_bytes(path, buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write `result.json` with its own SHA-256."""
    content = events.json_compatible(result)
    content["sha256"] = content_digest(content)
    atomic_files.write_bytes(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())


def read_result(path: Path) -> Any:
    """Return the result of a run; None if there is no file.

    Raises:
        ConfigError: the file is damaged, or not a result of this version.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    advice = "Remove it to continue this run from its last checkpoint, or from the start."
    try:
        result = json.loads(content)
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"{path} is damaged: not valid JSON. {advice}") from cause
    if not isinstance(result, dict) or result.get("event") != "result":
        raise ConfigError(f"{path} is not the result of a run. {advice}")
    if result.get("sha256") != content_digest({key: value for key, value in result.items() if key != "sha256"}):
        raise ConfigError(f"{path} is damaged: its content does not match its `sha256`. {advice}")
    events.validate(result, events.Result, str(path))
    return result


def content_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, independent of formatting and key order."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

"""Files with their SHA-256: a flipped bit is an error when they are read, and never another result."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import atomic, events

HEADER = b"gradhomog checkpoint 1 sha256:"


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint: a line with the SHA-256 of what follows, then what `torch.save` writes."""
    import torch

    buffer = io.BytesIO()  # `torch.save` to a full disk raises what nobody understands
    torch.save(dict(state), buffer)
    content = buffer.getvalue()
    atomic.write(path, HEADER + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` wrote, on the CPU; runs no code of the file.

    Raises:
        ConfigError: the file is damaged or of something else.
    """
    import torch

    # On the CPU: generators' states live there, and modules and optimizers copy theirs to their own device.
    state: dict[str, Any] = torch.load(io.BytesIO(state_content(path)), map_location="cpu", weights_only=True)
    return state


def state_content(path: Path) -> bytes:
    """What `torch.save` wrote to a checkpoint.

    Raises:
        ConfigError: the file is damaged or of something else.
    """
    header, _, content = path.read_bytes().partition(b"\n")
    if header != HEADER + hashlib.sha256(content).hexdigest().encode():
        raise ConfigError(f"{path} is damaged or no checkpoint. Remove it to train this run from its start.")
    return content


def write_network(path: Path, state: Mapping[str, Any]) -> str:
    """Write what `torch.load` reads; returns its SHA-256."""
    import torch

    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    atomic.write(path, buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write `result.json` with its own SHA-256."""
    content = events.plain(result)
    content["sha256"] = content_digest(content)
    atomic.write(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())


def read_result(path: Path) -> Any:
    """The result of a run; None if there is none.

    Raises:
        ConfigError: the file is damaged, or no result of this version.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    advice = "Remove it to go on with this run from its last checkpoint, or from its start."
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"{path} is damaged: no JSON. {advice}") from cause
    if not isinstance(found, dict) or found.get("event") != "result":
        raise ConfigError(f"{path} is no result of a run. {advice}")
    if found.get("sha256") != content_digest({key: value for key, value in found.items() if key != "sha256"}):
        raise ConfigError(f"{path} is damaged: its content is not that of its `sha256`. {advice}")
    events.check(found, events.Result, str(path))
    return found


def content_digest(content: Mapping[str, Any]) -> str:
    """The SHA-256 of what JSON holds."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

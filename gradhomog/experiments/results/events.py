"""The events of a run, `events.jsonl`: one JSON object per line, appended while it trains, readable at any time.

JSON has no NaN and no infinity: a number that is not finite is written as null, and `numbers` reads null as NaN.
"""

from __future__ import annotations

import json
import math
import os
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from gradhomog.errors import ConfigError
from gradhomog.registry.options import fits, words

VERSION = 1
"""Of the format of events and results. Files of another version are refused."""

Number = float | None
"""Null for what is not finite."""

Record = dict[str, Any]
"""An event with the run that it is of, as reports and figures take them; see `records`."""


class Start(TypedDict):
    """A process begins to train the run, or goes on with it after `step` steps; the first line of the file."""

    event: Literal["start"]
    version: int
    time: str
    step: int
    versions: dict[str, str]
    machine: dict[str, Any]
    jobs: int
    """How many runs the comparison made at a time."""


class Stage(TypedDict):
    """Rows after a homogenizer: their norms `[tasks]` and the cosines between them `[tasks, tasks]`."""

    name: str
    norms: list[Number]
    cosines: list[list[Number]]


class Step(TypedDict):
    """A training step, every `train.log_every` steps: the fields of `StepReport`."""

    event: Literal["step"]
    step: int
    seconds: float
    """Of all training steps so far."""
    losses: list[Number]
    accuracies: list[Number] | None
    norms: list[Number]
    cosines: list[list[Number]]
    weights: list[Number] | None
    tasks: list[int]
    domains: list[str]
    stages: list[Stage]
    measured: dict[str, dict[str, Any]]


class Probe(TypedDict):
    """The encoder's rows of one batch without homogenizers, with the first, with the first two, and so on, at the same
    parameters; where a homogenizer acts before rows exist."""

    event: Literal["probe"]
    step: int
    stages: list[Stage]


class Validation(TypedDict):
    """A validation score, every `train.validate_every` steps; `half_width` of its 95 % interval over tasks."""

    event: Literal["validation"]
    step: int
    score: Number
    half_width: Number


class Failed(TypedDict):
    """The run ended with an error; the last line of the file."""

    event: Literal["failed"]
    step: int
    error: str


class Finished(TypedDict):
    """What a finished run came to. `sha256` is of the other entries."""

    event: Literal["result"]
    version: int
    run: str
    learner: str
    homogenizers: str
    seed: int
    metric: str
    scores: list[Number]
    """One per test task; of a multi-task problem one per task."""
    losses: list[Number]
    domains: list[str]
    validation: Number
    best_step: int
    steps: int
    seconds: Number
    """By the clock."""
    step_seconds: Number
    """Processor time of a step."""
    homogenizer_seconds: list[dict[str, Any]]
    digest: str
    """Of the run's configuration."""
    files: dict[str, str]
    """SHA-256 of files beside it, such as `best.pt`."""
    sha256: str


class Result(Finished, total=False):
    """`result.json`: with what only some runs have."""

    ensemble: list[int]
    """Steps of the states that were tested together."""
    problem: str
    also: dict[str, Number]
    """Further numbers of a problem."""


Event = Start | Step | Probe | Validation | Failed
KINDS: dict[str, Any] = {"start": Start, "step": Step, "probe": Probe, "validation": Validation, "failed": Failed}


class EventLog:
    """The events of a run, for the one process that trains it.

    Each event has reached the operating system when `append` returns: a killed process loses at most the line that it
    was writing.

    Args:
        path: of the file; made if missing.
        size: go on after so many bytes, and cut off what follows: events after the last checkpoint, which come again.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        with path.open("ab") as file:
            if file.tell() < size:  # a machine that crashed had not written all to its disk
                raise ConfigError(
                    f"{path} ends before what its checkpoint knows of. Remove the folder of this run to train it again."
                )
            file.truncate(size)

    @property
    def size(self) -> int:
        """Bytes so far: what a checkpoint keeps."""
        return self.path.stat().st_size

    def sync(self) -> None:
        """Bring what was written to the disk, as a checkpoint relies on it."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())

    def append(self, event: Mapping[str, Any]) -> None:
        """Write an event as one line."""
        line = json.dumps(plain(event), ensure_ascii=False, allow_nan=False) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())


def read(path: Path) -> list[Any]:
    """All events of a file, in order; none if there is no file. Half a line at its end is left out: it may be being
    written, or be what a killed process left.

    Raises:
        ConfigError: a line is no event of this version; names it and says what is wrong.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise ConfigError(f"{path}: cannot be read: {cause.strerror}.") from cause
    return [parse(line, f"{path}, line {number}") for number, line in enumerate(content.split(b"\n")[:-1], start=1)]


def last(path: Path, limit: int = 1 << 20) -> list[Any]:
    """The events in the last bytes of a file, for who reads it again and again.

    Raises:
        ConfigError: as `read`. OSError: there is no file.
    """
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - limit)
        file.seek(start)
        lines = file.read().split(b"\n")[:-1]
    return [parse(line, str(path)) for line in lines[1 if start else 0 :]]


def parse(line: bytes, where: str) -> Any:
    """An event from its line.

    Raises:
        ConfigError: it is no event of this version; `where` names it.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as cause:
        raise ConfigError(
            f"{where}: expected an event as a JSON object; found {line[:60]!r}. Something else has changed the file: "
            "remove the folder of this run to train it again, or restore the file."
        ) from cause
    kind = KINDS.get(str(found.get("event"))) if isinstance(found, dict) else None
    if kind is None:
        raise ConfigError(f"{where}: expected an `event` among {', '.join(KINDS)}; found {line[:60]!r}.")
    check(found, kind, where)
    return found


def check(found: Mapping[str, Any], kind: Any, where: str) -> None:
    """Refuse an object that is none of its kind.

    Raises:
        ConfigError: a key is missing or of the wrong type, or the version is another.
    """
    if found.get("version", VERSION) != VERSION:
        raise ConfigError(
            f"{where}: is of format version {found['version']!r}; this gradhomog reads {VERSION}. Use the version of "
            "gradhomog that wrote it."
        )
    hints = typing.get_type_hints(kind)
    for key in sorted(kind.__required_keys__ | (kind.__optional_keys__ & set(found))):
        if key not in found:
            raise ConfigError(f"{where}: `{key}` is missing from {found.get('event')!r}.")
        if not fits(found[key], hints[key]):
            raise ConfigError(f"{where}: `{key}` must be {words(hints[key])}; got {str(found[key])[:60]}.")


def numbers(values: Iterable[float | None] | None) -> list[float]:
    """Numbers of an event as floats; null becomes NaN."""
    return [math.nan if value is None else float(value) for value in values or ()]


def plain(value: Any) -> Any:
    """The value as JSON has it: numbers that are not finite become None, NumPy values plain ones, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

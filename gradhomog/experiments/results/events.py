"""The event log of a run, `events.jsonl`: one JSON object per line, appended during training, readable at any time.

JSON has no NaN and no infinity: non-finite numbers are written as null, and `numbers` reads null as NaN.
"""

import json
import math
import os
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from annotated_types import Ge, MinLen

from gradhomog.errors import ConfigError
from gradhomog.experiments.results.atomic_files import name_errors
from gradhomog.files import open_regular
from gradhomog.registry.options import describe_mismatch

MAX_BYTES = 2**30
"""Limit on the size of a file of events, a result or a plan: a million events of 1 KB."""

VERSION = 2
"""Format version of events, results and plans. Files of another version are rejected."""

Number = float | None
"""None for non-finite numbers."""

Count = Annotated[int, Ge(0)]
Seconds = Annotated[float, Ge(0)]

Record = dict[str, Any]
"""An event with its run and method, for reports and figures; see `records`."""


class StartEvent(TypedDict):
    """A process starts the run, or continues it after `step` steps. The first line of the file."""

    event: Literal["start"]
    version: int
    time: str
    step: Count
    versions: dict[str, str]
    machine: dict[str, Any]
    jobs: Count
    """Number of runs that the comparison computed at the same time."""


class StageRecord(TypedDict):
    """Rows after a homogenizer: their norms `[tasks]` and the cosines between them `[tasks, tasks]`."""

    name: str
    norms: list[Number]
    cosines: list[list[Number]]


class StepEvent(TypedDict):
    """A training step, written every `train.log_every` steps: the numbers of `StepReport`, of the tasks in the step."""

    event: Literal["step"]
    step: Count
    seconds: Seconds
    """Wall-clock time of all training steps so far."""
    losses: list[Number]
    accuracies: list[Number] | None
    norms: list[Number]
    cosines: list[list[Number]]
    weights: list[Number] | None
    tasks: list[int]
    names: list[str]
    stages: list[StageRecord]
    measured: dict[str, dict[str, Any]]


class ProbeEvent(TypedDict):
    """The encoder's rows of one batch without homogenizers, with the first one, with the first two, and so on, at the
    same parameters. Only written if a homogenizer acts before the rows exist."""

    event: Literal["probe"]
    step: Count
    stages: list[StageRecord]


class ValidationEvent(TypedDict):
    """A validation score, every `train.validate_every` steps, with the `half_width` of its 95 % interval over tasks."""

    event: Literal["validation"]
    step: Count
    score: Number
    half_width: Number


class FailureEvent(TypedDict):
    """The run ended with an error; the last line of the file."""

    event: Literal["failed"]
    step: Count
    error: str


class FinishedResult(TypedDict):
    """The result of a finished run."""

    event: Literal["result"]
    version: int
    run: str
    learner: str
    homogenizers: str
    seed: int
    metric: str
    scores: Annotated[list[Number], MinLen(1)]
    """One per test task; for a multi-task problem, one per task."""
    losses: list[Number]
    domains: list[str]
    validation: Number
    best_step: Count
    steps: Count
    seconds: Number
    """Wall-clock time of training."""
    step_seconds: Number
    """Processor time per step."""
    digest: str
    """Hash of the run's configuration."""
    fingerprints: dict[str, str]
    """Hashes of the data, by domain; see `Plan`."""
    files: dict[str, str]
    """SHA-256 of the other files of the run, such as `events.jsonl` and `best.pt`."""


class Result(FinishedResult, total=False):
    """The content of `result.json`, with the entries that only some runs have."""

    ensemble: list[int]
    """Steps of the states of the tested ensemble."""
    problem: str
    additional_scores: dict[str, Number]
    """Additional scores of a problem."""
    additional_metrics: dict[str, str]
    """Metrics of those that count in place of the scores, by name; see `analysis.summary.named_scores`."""


KINDS: dict[str, Any] = {
    "start": StartEvent, "step": StepEvent, "probe": ProbeEvent, "validation": ValidationEvent, "failed": FailureEvent,
}  # fmt: skip


_ADVICE = "Another program has changed the file: remove the folder of this run to train it again, or restore the file."


class EventLog:
    """Append events to the log of a run; only the process that trains the run may use it.

    When `append` returns, the operating system has the event: a killed process loses at most an unfinished line.

    Args:
        path: path of the file; created if missing.
        size: keep this many bytes and truncate the rest: events after the last checkpoint, which are written again.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        with name_errors(path), path.open("ab") as file:
            if file.tell() < size:  # the machine crashed before all data reached the disk
                raise ConfigError(
                    f"{path} is shorter than at its checkpoint. Remove the folder of this run to train it again."
                )
            file.truncate(size)

    def sync(self) -> int:
        """Sync the file to disk, and return its size in bytes, which checkpoints store."""
        with name_errors(self.path), self.path.open("rb+") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write an event as one line."""
        line = json.dumps(json_compatible(event), ensure_ascii=False, allow_nan=False) + "\n"
        with name_errors(self.path), self.path.open("ab") as file:
            file.write(line.encode())


def read(path: Path) -> list[Any]:
    """Return all events of a file, in order; an empty list if there is no file.

    An unfinished last line is skipped: a process is still writing it, or was killed while writing it.

    Raises:
        ConfigError: a line is not an event of this version; names the line and the error.
    """
    try:
        with open_regular(path, MAX_BYTES, error=ConfigError) as file:
            lines = enumerate(file, start=1)
            return [parse(line, f"{path}, line {number}") for number, line in lines if line.endswith(b"\n")]
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise ConfigError(f"{path}: cannot be read: {cause.strerror}.") from cause


def read_tail(path: Path, limit: int = 1 << 20) -> list[Any]:
    """Return the events in the last `limit` bytes of a file; cheap enough for polling.

    Raises:
        ConfigError: as `read`. OSError: there is no file.
    """
    with open_regular(path, error=ConfigError) as file:
        start = max(0, path.stat().st_size - limit)
        file.seek(start)
        lines = file.read().split(b"\n")[:-1]
    return [parse(line, str(path)) for line in lines[1 if start else 0 :]]


def parse(line: bytes, where: str) -> Any:
    """Return the event of a line.

    Args:
        where: file and line, for error messages.

    Raises:
        ConfigError: the line is not an event of this version.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"{where}: expected an event as a JSON object; found {line[:60]!r}. {_ADVICE}") from cause
    kind = KINDS.get(str(event.get("event"))) if isinstance(event, dict) else None
    if kind is None:
        raise ConfigError(f"{where}: expected an `event` among {', '.join(KINDS)}; found {line[:60]!r}. {_ADVICE}")
    validate(event, kind, where, _ADVICE)
    return event


def check_version(content: Mapping[str, Any], where: str) -> None:
    """Check the format version of a file's content, if it has one.

    Raises:
        ConfigError: it is another one.
    """
    if content.get("version", VERSION) != VERSION:
        raise ConfigError(
            f"{where}: has format version {content['version']!r}; this gradhomog reads {VERSION}. Use the version of "
            "gradhomog that wrote it."
        )


def validate(content: Mapping[str, Any], kind: Any, where: str, advice: str) -> None:
    """Check the keys, value types and ranges of an event, a result, a plan or a checkpoint.

    Args:
        kind: the `TypedDict` that describes it.
        where, advice: file and line, and a remedy for the user, for error messages.

    Raises:
        ConfigError: a key is missing or has a value of the wrong type, or the format version differs.
    """
    check_version(content, where)
    hints = typing.get_type_hints(kind, include_extras=True)
    for key in sorted(kind.__required_keys__ | (kind.__optional_keys__ & set(content))):
        if key not in content:
            raise ConfigError(f"{where}: `{key}` is missing. {advice}")
        if error := describe_mismatch(key, content[key], hints[key]):
            raise ConfigError(f"{where}: {error} {advice}")


def numbers(values: Iterable[float | None] | None) -> list[float]:
    """Return the numbers of an event as floats, with NaN for None."""
    return [math.nan if value is None else float(value) for value in values or ()]


def json_compatible(value: Any) -> Any:
    """Convert to types that JSON supports: NumPy values to Python's, tuples to lists, non-finite numbers to None."""
    if isinstance(value, Mapping):
        return {str(key): json_compatible(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return json_compatible(value.tolist())
    if isinstance(value, list | tuple):
        return [json_compatible(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

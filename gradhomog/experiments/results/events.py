"""The run log `results.jsonl`: one JSON object per line, appended as things happen, readable while a run goes on.

Every record has an `event`. What is written, and read back:

* `start`: `time`, `config` and its `digest`, `rows` (`learner` and `label` of each), `versions`, `machine`, and
  `workers`, how many runs are made at a time; one per invocation. Of a multi-task problem also `tasks`, their names,
  `notes`, sentences about its data, and `fingerprint`, a hash of it; and `held_out`, false where what is tuned is tuned
  on the very scores of the results.
* `step`: `run`, `step`, and what `StepReport` holds: `losses`, `accuracies`, `norms`, `cosines`, `weights`, `tasks`,
  `domains`, `stages` (`name`, `norms`, `cosines` of the rows after each homogenizer that changes rows) and `measured`
  (by homogenizer, numbers by name).
* `probe`: `run`, `step` and `stages`: the encoder's rows of one batch without any homogenizer ("plain"), with the
  first, with the first two, and so on, at the same parameters; only where a homogenizer acts before rows exist.
* `validation`: `run`, `step`, `score`, `half_width`.
* `result`: `run`, `label`, `learner`, `homogenizers`, `seed`, `role` ("compare" or "candidate"), `metric`, `scores`,
  `losses` and `domains` (one per test task; of a multi-task problem one per task), `validation`, `best_step`, `steps`,
  `seconds`, `step_seconds`, `homogenizer_seconds` (`homogenizer`, `plugin`, `seconds` of each, by the clock as
  `seconds` is); a tuned method's result also has `tuned_from` and `chosen`, that of several states tested together
  `ensemble`, their steps, and that of a multi-task problem `problem`, its name, and perhaps `also`, further numbers by
  name.
* `failed`: `run`, `label`, `learner`, `seed`, `role`, `error`.

JSON knows no NaN and no infinity: a number that is not finite is written as null, and `numbers` reads null as NaN.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradhomog.errors import ConfigError

PLAIN = "plain"
"""The label of the learner without homogenizers, to which all others are compared."""

SINGLE = "single-task"
"""The label of a network for each task of a multi-task problem, trained alone."""

Record = dict[str, Any]
"""One line of the log."""

# Losing a step record costs a dot in a figure; losing one of these costs a run.
_SYNCED = frozenset({"start", "result"})


class ResultLog:
    """The log of one folder, for one writer at a time.

    Each record reaches the operating system before `append` returns, so a killed process loses at most the line it was
    writing; `start` and `result` also reach the disk.

    Raises:
        ConfigError: the file ends in half a line; `ResultLog.recover` cuts it off.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and _last_byte(self.path) not in (b"", b"\n"):
            raise ConfigError(
                f"{self.path} ends in half a line; a record appended to it would be lost. Call ResultLog.recover first."
            )

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record as one line. It must have an `event`; NumPy numbers and arrays become plain ones."""
        if not isinstance(record.get("event"), str):
            raise ConfigError(f"a record must have a text `event`; found the keys {sorted(record)}.")
        line = json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n"
        # Opened anew for each line: no buffer outlives the call, and nothing is inherited by a worker process.
        with self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            if record["event"] in _SYNCED:
                os.fsync(file.fileno())

    @staticmethod
    def read(path: str | Path) -> list[Record]:
        """All records, in the order in which they were written.

        A run that is resumed repeats what came after its last checkpoint: of several records of one event, run, role
        and step the last one counts. Half a line at the end is left out, since a run may be writing it.

        Raises:
            ConfigError: the file is missing, or a line before the last is not a record.
        """
        records, _ = _parse(Path(path))
        last = {_identity(record, index): index for index, record in enumerate(records)}
        return [records[index] for index in sorted(last.values())]

    @staticmethod
    def recover(path: str | Path) -> int:
        """Cut off a last line that a killed run left unfinished, and return how many bytes that were.

        Raises:
            ConfigError: as `read`; nothing is cut then.
        """
        path = Path(path)
        _, good = _parse(path)
        size = path.stat().st_size
        if good < size:
            with path.open("r+b") as file:
                file.truncate(good)  # one system call: the file is either as before or good
                os.fsync(file.fileno())
        return size - good


def numbers(values: Iterable[float | None] | None) -> list[float]:
    """Numbers of a record as floats; null, which stands for what was not finite, becomes NaN."""
    return [math.nan if value is None else float(value) for value in values or ()]


def row_order(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Learner and label of every method with a result, in the order of the configuration, plain first within a learner.

    The order in which runs finish depends on the machine, so it only decides where no `start` record names the `rows`.
    """
    named: list[tuple[str, str]] = []
    found: list[tuple[str, str]] = []
    for record in records:
        if record["event"] == "start":
            named = [(row["learner"], row["label"]) for row in record.get("rows") or ()]
        elif record["event"] == "result" and record["role"] == "compare":
            found.append((record["learner"], record["label"]))
    there = set(found)
    pairs = [pair for pair in dict.fromkeys([*named, *found]) if pair in there]
    learners = list(dict.fromkeys(learner for learner, _ in pairs))
    return sorted(pairs, key=lambda pair: (learners.index(pair[0]), pair[1] != PLAIN))


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


def _identity(record: Record, index: int) -> tuple[Any, ...]:
    if record["event"] not in ("step", "probe", "validation", "result"):
        return (index,)
    # A tuning's winner has two results under one run: as a candidate and as the row of the table.
    return record["event"], record.get("run"), record.get("role"), record.get("step")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise ConfigError(
            f"{path}: no run log can be read here: {cause}. Pass a folder that `gradhomog compare` wrote."
        ) from cause


def _last_byte(path: Path) -> bytes:
    """The last byte of a file; nothing if it is empty."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read()


def _parse(path: Path) -> tuple[list[Record], int]:
    """The records of a log, and the number of bytes that they take."""
    lines = _content(path).split(b"\n")
    records: list[Record] = []
    good = 0
    # What follows the last line break is empty or half a line, even where it happens to parse.
    for number, line in enumerate(lines[:-1], start=1):
        record = _record(line)
        if record is None:
            if number == len(lines) - 1 and not lines[-1]:
                break
            raise ConfigError(
                f"{path}, line {number}: expected a JSON object with an `event`; found {line[:60]!r}. "
                "A run only ever leaves its last line unfinished, so the file was changed by something else: restore "
                "it, or delete this line; what it recorded is then missing from the report."
            )
        records.append(record)
        good += len(line) + 1
    return records, good


def _record(line: bytes) -> Record | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None

"""Integrity check of a comparison's files, by the digests of results, networks and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import checksums, events
from gradhomog.experiments.results.comparison_dir import PLAN, Plan
from gradhomog.experiments.results.run_dir import RESULT, RunDir


def verify(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield each file of a comparison that has a digest or a schema, with its error; None if the file is intact."""
    yield folder / PLAN, _error(Plan.read, folder)
    for path in sorted((folder / "runs").glob("*/")):
        run = RunDir(path)
        for file, read in ((run.events, events.read), (run.checkpoint, checksums.checkpoint_content)):
            if file.exists():
                yield file, _error(read, file)
        yield from _verify_result(run)


def _verify_result(run: RunDir) -> Iterator[tuple[Path, str | None]]:
    error = _error(lambda _: run.result(), run.path)
    if error is not None:
        yield run.path / RESULT, error
    elif (result := run.result()) is not None:
        yield run.path / RESULT, None
        for name, digest in result["files"].items():
            path = run.path / name
            if not path.is_file():
                yield path, f"{path} is missing."
            else:
                damaged = checksums.file_digest(path) != digest
                yield path, f"{path} is damaged: its content does not match its SHA-256." if damaged else None


def _error(read: Callable[[Path], Any], path: Path) -> str | None:
    try:
        read(path)
    except ConfigError as error:
        return str(error)
    return None

"""Files in run folders from which figures are drawn: one per method, of the first seed that has one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import row_order

Artifact = TypeVar("Artifact")


def collect_by_method(
    folder: Path, records: Iterable[Record], file: str, read: Callable[[Path], Artifact | None]
) -> dict[tuple[str, str], Artifact]:
    """Return the first artifact of each method, by learner and label, in the order of the table.

    A file that cannot be read is reported on stderr and skipped: results do not depend on it.

    Args:
        file: name of the artifact's file, for messages.
        read: returns the artifact of a run's folder; None if there is none.
    """
    records = list(records)
    results = [record for record in records if record["event"] == "result" and record["role"] == "compare"]
    artifacts: dict[tuple[str, str], Artifact] = {}
    for record in sorted(results, key=lambda record: record["seed"]):
        pair = (record["learner"], record["label"])
        try:
            artifact = read(folder / "runs" / record["run"])
        except Exception as error:  # a damaged archive raises various errors of zipfile, zlib and NumPy
            print(f"{folder / 'runs' / record['run'] / file}: skipped, it cannot be read: {error}", file=sys.stderr)
            continue
        if artifact is not None:
            artifacts.setdefault(pair, artifact)
    return {pair: artifacts[pair] for pair in row_order(records) if pair in artifacts}

"""What runs keep in their folders for figures: one file of each method, of the first seed that has one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import row_order

Kept = TypeVar("Kept")


def of_methods(
    folder: Path, records: Iterable[Record], file: str, read: Callable[[Path], Kept | None]
) -> dict[tuple[str, str], Kept]:
    """By learner and label, in the table's order, what `read` makes of a run's folder, unless that is None.

    A file that cannot be read is told on stderr and passed over: it is a picture, not a result.
    """
    records = list(records)
    results = [record for record in records if record["event"] == "result" and record["role"] == "compare"]
    found: dict[tuple[str, str], Kept] = {}
    for record in sorted(results, key=lambda record: record["seed"]):
        pair = (record["learner"], record["label"])
        try:
            kept = read(folder / "runs" / record["run"])
        except Exception as error:  # a damaged archive raises what zipfile, zlib or NumPy raise
            print(f"{folder / 'runs' / record['run'] / file}: left out, it cannot be read: {error}", file=sys.stderr)
            continue
        if kept is not None:
            found.setdefault(pair, kept)
    return {pair: found[pair] for pair in row_order(records) if pair in found}

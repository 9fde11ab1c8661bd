"""The runs that are stored with the package, and those of a folder: lines of JSON, one for the runs of a row."""

import gzip
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from filelock import FileLock

from gradhomog.errors import DataError
from gradhomog.experiments.suite.problems import find_problem
from gradhomog.experiments.suite.protocol import SuiteRun

FILE = "results.jsonl"
"""The file of a folder; packed by gzip, it is the file in the package."""

Row = tuple[str, str]
"""Problem and method."""


Results = dict[Row, Sequence[SuiteRun]]
"""The runs of rows; of two rows with the same names the later counts."""


def by_row(rows: Iterable[Sequence[SuiteRun]]) -> Results:
    """The runs of each row by its problem and method."""
    return {(runs[0].problem, runs[0].method): runs for runs in rows}


def current(results: Results) -> Results:
    """Those rows that were computed with the present source of their homogenizers, and the present versions."""
    return {
        (name, method): runs
        for (name, method), runs in results.items()
        if (problem := find_problem(name)) and runs[0].code == problem.code(method)
    }


def by_factor(runs: Sequence[SuiteRun]) -> dict[float, list[SuiteRun]]:
    """The runs of a row by the factor of the loss, in the order of their seeds."""
    cells: dict[float, list[SuiteRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        cells.setdefault(run.factor, []).append(run)
    return cells


def stored_results() -> Results:
    """The rows that the package contains."""
    file = resources.files("gradhomog.experiments.suite").joinpath(f"{FILE}.gz")
    return _parse(gzip.decompress(file.read_bytes()).decode().splitlines(), str(file)) if file.is_file() else {}


def read_results(folder: Path) -> Results:
    """The rows of a folder; none if it has no file.

    Raises:
        DataError: a line does not contain the runs of a row. An unfinished last line, of an interrupted process, is not
            read.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    return _parse(text[: text.rfind("\n") + 1].splitlines(), str(path))


def append_row(folder: Path, runs: Sequence[SuiteRun]) -> None:
    """Add the runs of a row to the file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps([run.to_json() for run in runs]) + "\n"
    with FileLock(folder / f"{FILE}.lock"), (folder / FILE).open("r+b" if (folder / FILE).exists() else "w+b") as file:
        content = file.read()
        file.seek(content.rfind(b"\n") + 1)  # after the last whole line
        file.write(line.encode())


def _parse(lines: Sequence[str], path: str) -> Results:
    """The rows of these lines, without those of problems whose settings have changed since."""
    rows: list[list[SuiteRun]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = [SuiteRun.from_json(content) for content in json.loads(line)]
            if not isinstance(row[0].problem, str):
                raise TypeError("the name of a problem is a string")
        except (TypeError, ValueError, AttributeError, IndexError) as cause:
            found = f"expected the runs of a row; found {line[:60]!r}"
            raise DataError(f"{path}, line {number}: {found}. Remove the line.") from cause
        problem = find_problem(row[0].problem)
        rows += [row] if problem and problem.digest == row[0].digest else []
    return by_row(rows)

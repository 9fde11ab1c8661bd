"""The runs that are stored with the package, and those of a folder: lines of JSON with SHA-256, one for each row."""

import gzip
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path

from filelock import FileLock

from gradhomog.errors import ConfigError, PluginError
from gradhomog.experiments.environment import machine, versions
from gradhomog.experiments.results import checksums, events
from gradhomog.experiments.results.atomic_files import name_errors, write_bytes
from gradhomog.experiments.suite.problems import SuiteProblem, find_problem
from gradhomog.experiments.suite.protocol import SuiteRun, selected_rate
from gradhomog.files import read_text

FILE = "results.jsonl"
"""The file of a folder; packed by gzip, it is the file in the package."""

ENVIRONMENT = "environment.json"
"""The versions and the machine of the rows of a folder that were computed last."""

Row = tuple[str, str]
"""Problem and method."""


Results = dict[Row, Sequence[SuiteRun]]
"""The runs of rows; of two rows with the same names the later counts."""


def by_row(rows: Iterable[Sequence[SuiteRun]]) -> Results:
    """The runs of each row by its problem and method."""
    return {(runs[0].problem, runs[0].method): runs for runs in rows}


def current(results: Results) -> Results:
    """Those rows that were computed with the present source of their homogenizers, and the present versions."""
    return {(name, method): runs for (name, method), runs in results.items() if is_current(find_problem(name), runs)}


def is_current(problem: SuiteProblem | None, runs: Sequence[SuiteRun]) -> bool:
    """True if a row was computed with the present source of its homogenizers, and the present versions."""
    with suppress(PluginError):  # it is disabled, or not installed any more
        return problem is not None and runs[0].code == problem.code(runs[0].method)
    return False


def by_factor(runs: Sequence[SuiteRun]) -> dict[float, list[SuiteRun]]:
    """The runs of a row by the factor of the loss, at the selected learning rate, in the order of their seeds."""
    cells: dict[float, list[SuiteRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        cells.setdefault(run.factor, []).append(run)
    return {factor: [run for run in cell if run.rate == selected_rate(cell)] for factor, cell in cells.items()}


def stored_results() -> Results:
    """The rows that the package contains."""
    file = resources.files("gradhomog.experiments.suite").joinpath(f"{FILE}.gz")
    return _parse(gzip.decompress(file.read_bytes()).splitlines(), str(file)) if file.is_file() else {}


def read_results(folder: Path) -> Results:
    """The rows of a folder; none if it has no file.

    Raises:
        ConfigError: a line does not contain the runs of a row, or was changed. An unfinished last line, of an
            interrupted process, is not read.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    text = read_text(path, events.MAX_BYTES, error=ConfigError)
    return _parse(text[: text.rfind("\n") + 1].splitlines(), str(path))


def write_environment(folder: Path) -> None:
    """Write the versions and the machine beside the rows of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"versions": versions(), "machine": machine()}
    write_bytes(folder / ENVIRONMENT, f"{json.dumps(content, indent=2)}\n".encode())


def append_row(folder: Path, runs: Sequence[SuiteRun]) -> None:
    """Add the runs of a row to the file of a folder."""
    line, path = json.dumps(checksums.signed({"runs": [run.to_json() for run in runs]})) + "\n", folder / FILE
    with FileLock(folder / f"{FILE}.lock"), name_errors(path), path.open("r+b" if path.exists() else "w+b") as file:
        content = file.read()
        file.seek(content.rfind(b"\n") + 1)  # after the last whole line
        file.write(line.encode())


def _parse(lines: Sequence[str | bytes], path: str) -> Results:
    """The rows of these lines, without those of problems whose settings have changed since."""
    rows: list[list[SuiteRun]] = []
    for number, line in enumerate(lines, start=1):
        content = checksums.parse_json(line, f"{path}, line {number}", "Remove the line to compute its row again.")
        row = [SuiteRun.from_json(run) for run in content["runs"]]
        with suppress(PluginError):  # a plugin that another row does not need
            problem = find_problem(row[0].problem)
            rows += [row] if problem and problem.digest == row[0].digest else []
    return by_row(rows)

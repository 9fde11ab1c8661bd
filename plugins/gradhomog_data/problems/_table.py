"""Read tables of numbers as named columns, from a CSV file, an NPZ file or a data set of scikit-learn."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog import DataError, did_you_mean, files
from gradhomog_data.domains._text_files import read_lines
from gradhomog_data.problems._optional_import import import_optional

Columns = dict[str, NDArray[np.float64]]
"""Arrays `[rows, columns]` by name: one column each from a CSV file, any number from an NPZ file."""

TARGETS: Mapping[str, tuple[str, ...]] = {
    "breast_cancer": tuple(
        f"worst {name}"
        for name in (
            "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points",
            "symmetry", "fractal dimension",
        )
    ),
}  # fmt: skip
"""A data set that is installed with scikit-learn, with the columns that are predicted from all others: the largest
values of ten measures of cell nuclei in 569 images, from the means and standard errors of all."""


MAX_BYTES = 2**30
"""Limit, in bytes, on the arrays that are read from an NPZ file."""

MAX_CSV_BYTES = MAX_BYTES // 4
"""Limit on a CSV file: a number takes at least two bytes of text, and eight in memory."""


def read_columns(data: str) -> Columns:
    """Return the columns of a data set by name, or of a file `*.csv` or `*.npz`.

    Raises:
        DataError: the name or file is unknown, scikit-learn is missing, or a value is not a finite number.
    """
    if data in TARGETS:
        columns = _load_scikit_learn(data)
    elif data.endswith(".csv"):
        columns = _read_file(_read_csv, Path(data))
    elif data.endswith(".npz"):
        columns = _read_file(_read_npz, Path(data))
    else:
        hint = did_you_mean(data, TARGETS)
        raise DataError(f"`problem.data` must be {', '.join(TARGETS)}, or a .csv or .npz file; got {data!r}.{hint}")
    for name, values in columns.items():
        for row, column in np.argwhere(~np.isfinite(values))[:1]:
            raise DataError(f"{data}: column {name!r}, row {row + 1}: expected a number; found {values[row, column]}.")
    return columns


def select_columns(columns: Columns, names: Sequence[str], key: str) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the columns of some names side by side, `[rows, n]`, with a title for each.

    Raises:
        DataError: a name is unknown or occurs twice.
    """
    titles: list[str] = []
    for name in names:
        if name not in columns or names.count(name) > 1:
            hint = "" if name in columns else did_you_mean(name, columns)
            raise DataError(f"`{key}` must name columns, each once: {', '.join(columns)}; got {name!r}.{hint}")
        width = columns[name].shape[1]
        titles += [name] if width == 1 else [f"{name}[{index}]" for index in range(width)]
    return tuple(titles), np.concatenate([columns[name] for name in names], axis=1)


def _read_csv(path: Path) -> Columns:
    """Read a line of column names and lines of numbers, separated by commas."""
    lines = read_lines(path, MAX_CSV_BYTES, "Store the columns as arrays of an .npz file.")
    names, values = next(lines), array("d")
    for index, row in enumerate(lines, start=1):
        if len(row) != len(names):
            raise DataError(f"{path}, row {index}: expected {len(names)} values, one per column name; got {len(row)}.")
        values.extend(_parse_number(path, name, index, text) for name, text in zip(names, row, strict=True))
    if not values or len(set(names)) < len(names) or not all(names):
        raise DataError(f"{path}: expected a line of different column names, then lines of numbers; found {names}.")
    table = np.array(values).reshape(-1, len(names))
    return {name: table[:, [index]] for index, name in enumerate(names)}


def _read_file(read: Callable[[Path], Columns], path: Path) -> Columns:
    try:
        return read(path)
    except DataError as cause:
        raise DataError(f"`problem.data` {cause}") from cause
    except OSError as cause:
        raise DataError(f"`problem.data` {path}: cannot be read ({cause.strerror or cause}).") from cause


def _parse_number(path: Path, name: str, row: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            f"{path}: column {name!r}, row {row}: expected a number; found {text!r}. "
            "Encode text as numbers, and fill in or remove missing values."
        )
    return value


def _read_npz(path: Path) -> Columns:
    """Read arrays `[rows]` or `[rows, columns]` of numbers by name."""
    arrays = _read_arrays(path)
    counts = {name: len(values) for name, values in arrays.items()}
    if not arrays or len(set(counts.values())) > 1:
        raise DataError(f"{path}: all arrays must have the same number of rows; found {counts or 'no array'}.")
    return {name: values.astype(np.float64).reshape(len(values), -1) for name, values in arrays.items()}


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    with files.open_npz(path, max_bytes=MAX_BYTES) as stored:
        for name in stored.names:
            header = stored.header(name)
            numbers = np.issubdtype(header.dtype, np.number) and not np.issubdtype(header.dtype, np.complexfloating)
            if not numbers or len(header.shape) not in (1, 2) or not all(header.shape):
                raise DataError(f"{path}: array {name!r} must hold numbers [rows] or [rows, columns]; got {header}.")
        return {name: stored.read(name) for name in stored.names}


def _load_scikit_learn(name: str) -> Columns:
    datasets = import_optional("sklearn.datasets", "scikit-learn", f"the data of `problem.data` {name}")
    data_set = getattr(datasets, f"load_{name}")()
    values = np.asarray(data_set.data, dtype=np.float64)
    return {str(title): values[:, [index]] for index, title in enumerate(data_set.feature_names)}

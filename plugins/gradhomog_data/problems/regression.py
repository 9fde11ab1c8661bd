"""Regression of several columns of a table on the other columns, with one task per target column.

A table is a CSV file, an NPZ file or a data set of scikit-learn.
"""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from gradhomog import DataError, Examples, MultiTaskData, ProblemRun, did_you_mean, files
from gradhomog_data._packages import require_package
from gradhomog_data._seeding import generator
from gradhomog_data.domains._text_files import read_lines

MIN_ROWS = 2
"""Minimum number of rows of a split, because R² needs two."""


BREAST_CANCER = "breast_cancer"
"""A data set that is installed with scikit-learn."""

BREAST_CANCER_TARGETS = tuple(
    f"worst {name}"
    for name in (
        "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points",
        "symmetry", "fractal dimension",
    )
)  # fmt: skip
"""The columns that are predicted from all others: the largest values of ten measures of cell nuclei in 569 images, from
the means and standard errors of all."""


def regression(
    run: ProblemRun,
    *,
    data: str = BREAST_CANCER,
    targets: Sequence[str] = (),
    inputs: Sequence[str] = (),
    validation: Annotated[float, Gt(0), Lt(1)] = 0.2,
    test: Annotated[float, Gt(0), Lt(1)] = 0.2,
    batch: Annotated[int, Ge(1)] = 64,
    seed: Annotated[int, Ge(0)] = 0,
) -> MultiTaskData:
    """Return inputs and targets, each standardized by the mean and standard deviation of its training rows.

    Args:
        data: `"breast_cancer"`, or a file.
        targets: names of columns; those of `"breast_cancer"` are `BREAST_CANCER_TARGETS` by default.
        inputs: names of columns; by default all columns that are not targets.
        validation, test: shares of the rows, drawn with `seed`.
        batch: rows per step.
        seed: of the division of the rows.

    Raises:
        DataError: the table cannot be used; the message contains the column or key.
    """
    columns = read_columns(data)
    targets = targets or (BREAST_CANCER_TARGETS if data == BREAST_CANCER else ())
    if not targets:
        raise DataError(f"`problem.targets` must name columns of {data}: {', '.join(columns)}; got none.")
    inputs = inputs or [name for name in columns if name not in targets]
    if not inputs or set(inputs) & set(targets):
        raise DataError(
            f"`problem.inputs` must name columns that are not targets; got {inputs}, with the targets {targets}."
        )
    _, x = select_columns(columns, inputs, "problem.inputs")
    tasks, y = select_columns(columns, targets, "problem.targets")
    for title in tasks:
        if tasks.count(title) > 1:  # tables of results and homogenizers identify a task by its title
            raise DataError(
                f"`problem.targets`: two columns of {data} have the title {title!r}: an array with this "
                f"name, and a column of the array {title.rpartition('[')[0]!r}. Rename one of the arrays."
            )
    rows = _split_rows(data, len(x), (validation, test), seed)
    for number, name in enumerate(tasks):
        for split in rows:
            if np.ptp(y[split, number]) == 0:
                raise DataError(
                    f"`problem.targets`: column {name!r} is constant in one of the three splits ({len(split)} rows), "
                    "so R² is undefined. Remove it from the targets, or choose another `problem.seed`."
                )
    train = rows[0]
    x, y = _standardize(x, train), _standardize(y, train)
    train_data, validation_data, test_data = (
        Examples(
            torch.from_numpy(x[split]).float(),
            tuple(torch.from_numpy(y[split][:, [number]]).float() for number in range(len(tasks))),
        )
        for split in rows
    )
    note = (
        f"{data}: {', '.join(tasks)}, each from {x.shape[1]} inputs; {len(rows[0])}, {len(rows[1])} and "
        f"{len(rows[2])} rows for training, validation and test, standardized by the training rows."
    )
    return MultiTaskData(tasks, (1,) * len(tasks), batch, train_data, validation_data, test_data, (note,))


def _split_rows(data: str, count: int, shares: tuple[float, float], seed: int) -> list[NDArray[np.int64]]:
    """Return the rows of training, validation and test."""
    validation, test = (max(MIN_ROWS, round(share * count)) for share in shares)
    train = count - validation - test
    if train < MIN_ROWS:
        raise DataError(
            f"{data} has {count} rows, of which `problem.validation` = {shares[0]:g} and "
            f"`problem.test` = {shares[1]:g} leave {max(train, 0)} to train on; "
            f"at least {MIN_ROWS} are needed in each split."
        )
    order = generator(seed).permutation(count)
    return [order[:train], order[train : train + validation], order[train + validation :]]


def _standardize(values: NDArray[np.float64], train: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scale columns to mean 0 and standard deviation 1 over the training rows; constant columns are only centred."""
    largest = np.abs(values).max(axis=0)
    values = values / np.where(largest > 0, largest, 1.0)  # without it, squares overflow or underflow at 1e±154
    known = values[train]
    # The standard deviation cannot detect constants: of a constant it is a rounding error, 1e-17 for 0.1.
    varies = np.ptp(known, axis=0) > 1e-12
    standardized: NDArray[np.float64] = (values - known.mean(axis=0)) / np.where(varies, known.std(axis=0), 1.0)
    return standardized


Columns = dict[str, NDArray[np.float64]]
"""Arrays `[rows, columns]` by name: one column each from a CSV file, any number from an NPZ file."""

MAX_BYTES = 2**30
"""Limit, in bytes, on the arrays that are read from an NPZ file."""

MAX_CSV_BYTES = MAX_BYTES // 4
"""Limit on a CSV file: a number takes at least two bytes of text, and eight in memory."""


def read_columns(data: str) -> Columns:
    """Return the columns of `"breast_cancer"`, or of a file `*.csv` or `*.npz`.

    Raises:
        DataError: the name or file is unknown, scikit-learn is missing, or a value is not a finite number.
    """
    readers = {".csv": _read_csv, ".npz": _read_npz}
    path = Path(data)
    if data == BREAST_CANCER:
        columns = _load_breast_cancer()
    elif path.suffix not in readers:
        hint = did_you_mean(data, [BREAST_CANCER])
        raise DataError(f"`problem.data` must be {BREAST_CANCER}, or a .csv or .npz file; got {data!r}.{hint}")
    else:
        try:
            columns = readers[path.suffix](path)
        except DataError as cause:
            raise DataError(f"`problem.data` {cause}") from cause
        except OSError as cause:
            raise DataError(f"`problem.data` {path}: cannot be read ({cause.strerror or cause}).") from cause
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


def _parse_number(path: Path, name: str, row: int, text: str) -> float:
    try:
        return float(text)
    except ValueError as cause:
        raise DataError(
            f"{path}: column {name!r}, row {row}: expected a number; found {text!r}. "
            "Encode text as numbers, and fill in or remove missing values."
        ) from cause


def _read_npz(path: Path) -> Columns:
    """Read arrays `[rows]` or `[rows, columns]` of numbers by name."""
    with files.open_npz(path, max_bytes=MAX_BYTES) as stored:
        counts = {}
        for name in stored.names:
            header = stored.header(name)
            numbers = np.issubdtype(header.dtype, np.number) and not np.issubdtype(header.dtype, np.complexfloating)
            if not numbers or len(header.shape) not in (1, 2) or not all(header.shape):
                raise DataError(f"{path}: array {name!r} must hold numbers [rows] or [rows, columns]; got {header}.")
            counts[name] = header.shape[0]
        if len(set(counts.values())) != 1:
            raise DataError(f"{path}: all arrays must have the same number of rows; found {counts or 'no array'}.")
        return {name: stored.read(name).astype(np.float64).reshape(counts[name], -1) for name in stored.names}


def _load_breast_cancer() -> Columns:
    require_package(f"the data of `problem.data` {BREAST_CANCER} come from", "sklearn", "scikit-learn", "problems")
    from sklearn.datasets import load_breast_cancer

    data_set = load_breast_cancer()
    values = np.asarray(data_set.data, dtype=np.float64)
    return {str(title): values[:, [index]] for index, title in enumerate(data_set.feature_names)}

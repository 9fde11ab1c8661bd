"""Regression of several columns of a table on the other columns, with one task per target column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from gradhomog import DataError, Examples, MultiTaskData, ProblemRun, ProblemSpec, hookimpl
from gradhomog_data._seeding import generator
from gradhomog_data.problems import _table

MIN_ROWS = 2
"""Minimum number of rows of a split, because R² needs two."""


def regression(
    run: ProblemRun,
    *,
    data: str = "breast_cancer",
    targets: Sequence[str] = (),
    inputs: Sequence[str] = (),
    validation: Annotated[float, Gt(0), Lt(1)] = 0.2,
    test: Annotated[float, Gt(0), Lt(1)] = 0.2,
    batch: Annotated[int, Ge(1)] = 64,
    seed: Annotated[int, Ge(0)] = 0,
) -> MultiTaskData:
    """Return inputs and targets, each standardized by the mean and standard deviation of its training rows.

    Args:
        data: a name in `table.TARGETS`, or a file.
        targets: names of columns; for a name in `table.TARGETS` they have a default.
        inputs: names of columns; by default all columns that are not targets.
        validation, test: shares of the rows, drawn with `seed`.
        batch: rows per step.
        seed: of the division of the rows.

    Raises:
        DataError: the table cannot be used; the message contains the column or key.
    """
    columns = _table.read_columns(data)
    targets = targets or [*_table.TARGETS.get(data, ())]
    if not targets:
        raise DataError(f"`problem.targets` must name columns of {data}: {', '.join(columns)}; got none.")
    inputs = inputs or [name for name in columns if name not in targets]
    if not inputs or set(inputs) & set(targets):
        raise DataError(
            f"`problem.inputs` must name columns that are not targets; got {inputs}, with the targets {targets}."
        )
    _, x = _table.select_columns(columns, inputs, "problem.inputs")
    tasks, y = _table.select_columns(columns, targets, "problem.targets")
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


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return ProblemSpec(
        factory=regression,
        summary="regression of several columns of a table, yours or one of scikit-learn, on the other columns",
        defaults={
            "network": {"name": "mlp", "width": 32},
            "train": {"steps": 1000, "outer_lr": 0.001, "validate_every": 50},
        },
        unused_keys=("network.size",),
    )

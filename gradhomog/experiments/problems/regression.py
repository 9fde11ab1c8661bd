"""Regression of several columns of a table on the other columns, with one task per target column."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from gradhomog.errors import DataError
from gradhomog.experiments.config.suites import suite_pipelines
from gradhomog.experiments.data.seeding import generator
from gradhomog.experiments.problems import table
from gradhomog.experiments.problems.data import R2, Data, SplitData
from gradhomog.experiments.problems.spec import EPISODIC, ProblemSpec
from gradhomog.experiments.training.multi_task import multi_task_trainable

MIN_ROWS = 2
"""Minimum number of rows of a split, because R² needs two."""


@dataclass(frozen=True)
class RegressionOptions:
    """Options of `regression`: a table, its target and input columns, and the division of its rows.

    Attributes:
        data: a name in `table.TARGETS`, or a file.
        targets: names of columns; for a name in `table.TARGETS` they have a default.
        inputs: names of columns; by default all columns that are not targets.
        validation, test: shares of the rows, drawn with `seed`.
    """

    name: Literal["regression"] = "regression"
    data: str = "breast_cancer"
    targets: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    validation: Annotated[float, Gt(0), Lt(1)] = 0.2
    test: Annotated[float, Gt(0), Lt(1)] = 0.2
    batch: Annotated[int, Ge(1)] = 64
    seed: Annotated[int, Ge(0)] = 0


def data(options: RegressionOptions) -> Data:
    """Return inputs and targets, each standardized by the mean and standard deviation of its training rows.

    Raises:
        DataError: the table cannot be used; the message contains the column or key.
    """
    columns = table.read_columns(options.data)
    targets = options.targets or [*table.TARGETS.get(options.data, ())]
    if not targets:
        raise DataError(f"`problem.targets` must name columns of {options.data}: {', '.join(columns)}; got none.")
    inputs = options.inputs or [name for name in columns if name not in targets]
    if not inputs or set(inputs) & set(targets):
        raise DataError(
            f"`problem.inputs` must name columns that are not targets; got {inputs}, with the targets {targets}."
        )
    _, x = table.select_columns(columns, inputs, "problem.inputs")
    tasks, y = table.select_columns(columns, targets, "problem.targets")
    for title in tasks:
        if tasks.count(title) > 1:  # tables of results and homogenizers identify a task by its title
            raise DataError(
                f"`problem.targets`: two columns of {options.data} have the title {title!r}: an array with this "
                f"name, and a column of the array {title.rpartition('[')[0]!r}. Rename one of the arrays."
            )
    rows = _split_rows(options, len(x))
    for number, name in enumerate(tasks):
        for split in rows:
            if np.ptp(y[split, number]) == 0:
                raise DataError(
                    f"`problem.targets`: column {name!r} is constant in one of the three splits ({len(split)} rows), "
                    "so R² is undefined. Remove it from the targets, or choose another `problem.seed`."
                )
    train = rows[0]
    x, y = _standardize(x, train), _standardize(y, train)
    first, second, third = (
        SplitData(
            torch.from_numpy(x[split]).float(),
            tuple(torch.from_numpy(y[split][:, [number]]).float() for number in range(len(tasks))),
        )
        for split in rows
    )
    note = (
        f"{options.data}: {', '.join(tasks)}, each from {x.shape[1]} inputs; {len(rows[0])}, {len(rows[1])} and "
        f"{len(rows[2])} rows for training, validation and test, standardized by the training rows."
    )
    return Data(tasks, (1,) * len(tasks), R2, first, second, third, notes=(note,))


def _split_rows(options: RegressionOptions, count: int) -> list[NDArray[np.int64]]:
    """Return the rows of training, validation and test."""
    validation, test = (max(MIN_ROWS, round(share * count)) for share in (options.validation, options.test))
    train = count - validation - test
    if train < MIN_ROWS:
        raise DataError(
            f"{options.data} has {count} rows, of which `problem.validation` = {options.validation:g} and "
            f"`problem.test` = {options.test:g} leave {max(train, 0)} to train on; "
            f"at least {MIN_ROWS} are needed in each split."
        )
    order = generator(options.seed).permutation(count)
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


PROBLEM = ProblemSpec(
    name="regression",
    options=RegressionOptions,
    trainable=multi_task_trainable(lambda options, size: data(options)),
    defaults={
        "homogenizers": suite_pipelines("multitask"),
        "network": {"name": "mlp", "width": 32},
        "train": {"steps": 1000, "outer_lr": 0.001, "validate_every": 50},
    },
    unused_keys=(*EPISODIC, "network.size"),
)

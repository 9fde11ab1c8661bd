"""Several columns of a table, each predicted from the other columns: one task each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gradhomog.errors import DataError
from gradhomog.experiments.config.suites import members
from gradhomog.experiments.config.validation import at_least
from gradhomog.experiments.data.seeding import generator
from gradhomog.experiments.problems import table
from gradhomog.experiments.problems.data import R2, Data, Part
from gradhomog.experiments.problems.spec import EPISODIC, ProblemSpec
from gradhomog.experiments.training.multi_task import trained_on

MIN_ROWS = 2
"""Rows of a part: R² needs two."""


@dataclass(frozen=True)
class Regression:
    """A table, which of its columns are targets, and the parts of its rows.

    Attributes:
        data: a name in `table.TARGETS`, or a file.
        targets: names of columns; of a data set's name they have a default.
        inputs: names of columns; by default all that are no targets.
        validation, test: parts of the rows, drawn by `seed`.
    """

    name: Literal["regression"] = "regression"
    data: str = "breast_cancer"
    targets: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    validation: float = at_least(0, 0.2, exclusive=True, below=1)
    test: float = at_least(0, 0.2, exclusive=True, below=1)
    batch: int = at_least(1, 64)
    seed: int = at_least(0, 0)


def data(options: Regression) -> Data:
    """Inputs and targets, each standardised by mean and standard deviation of its training rows.

    Raises:
        DataError: the table cannot be used; says which column or key.
    """
    columns = table.read_columns(options.data)
    targets = options.targets or [*table.TARGETS.get(options.data, ())]
    if not targets:
        raise DataError(f"`problem.targets` must name columns of {options.data}: {', '.join(columns)}; got none.")
    inputs = options.inputs or [name for name in columns if name not in targets]
    if not inputs or set(inputs) & set(targets):
        raise DataError(
            f"`problem.inputs` must name columns that are no targets; got {inputs}, with the targets {targets}."
        )
    _, x = table.select_columns(columns, inputs, "problem.inputs")
    tasks, y = table.select_columns(columns, targets, "problem.targets")
    for title in tasks:
        if tasks.count(title) > 1:  # the table and the homogenizers know a task by it
            raise DataError(
                f"`problem.targets`: two columns of {options.data} are called {title!r}: that of an array of this "
                f"name, and one of {title.rpartition('[')[0]!r}. Rename an array."
            )
    rows = _split_rows(options, len(x))
    for number, name in enumerate(tasks):
        for part in rows:
            if np.ptp(y[part, number]) == 0:
                raise DataError(
                    f"`problem.targets`: {name!r} has one value only in a part of {len(part)} rows, so there is "
                    "nothing to predict and no R². Leave it out, or choose another `problem.seed`."
                )
    train = rows[0]
    x, y = _standardize(x, train), _standardize(y, train)
    first, second, third = (
        Part(
            torch.from_numpy(x[part]).float(),
            tuple(torch.from_numpy(y[part][:, [number]]).float() for number in range(len(tasks))),
        )
        for part in rows
    )
    note = (
        f"{options.data}: {', '.join(tasks)}, each from {x.shape[1]} inputs; {len(rows[0])}, {len(rows[1])} and "
        f"{len(rows[2])} rows for training, validation and test, standardised by the first."
    )
    return Data(tasks, (1,) * len(tasks), R2, first, second, third, notes=(note,))


def _split_rows(options: Regression, count: int) -> list[NDArray[np.int64]]:
    """The rows of training, validation and test."""
    validation, test = (max(MIN_ROWS, round(share * count)) for share in (options.validation, options.test))
    train = count - validation - test
    if train < MIN_ROWS:
        raise DataError(
            f"{options.data} has {count} rows, of which `problem.validation` = {options.validation:g} and "
            f"`problem.test` = {options.test:g} leave {max(train, 0)} to train on; "
            f"at least {MIN_ROWS} are needed in each part."
        )
    order = generator(options.seed).permutation(count)
    return [order[:train], order[train : train + validation], order[train + validation :]]


def _standardize(values: NDArray[np.float64], train: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean 0 and standard deviation 1 over the training rows; a column that is constant there only loses its mean."""
    largest = np.abs(values).max(axis=0)
    values = values / np.where(largest > 0, largest, 1.0)  # else squares leave float64's range at 1e±154
    known = values[train]
    # Not by the deviation, which of a constant is rounding: 1e-17 for 0.1.
    varies = np.ptp(known, axis=0) > 1e-12
    made: NDArray[np.float64] = (values - known.mean(axis=0)) / np.where(varies, known.std(axis=0), 1.0)
    return made


PROBLEM = ProblemSpec(
    name="regression",
    options=Regression,
    trainable=trained_on(lambda options, size: data(options)),
    defaults={
        "homogenizers": members("multitask"),
        "network": {"name": "mlp", "width": 32},
        "train": {"steps": 1000, "outer_lr": 0.001, "validate_every": 50},
    },
    unused=(*EPISODIC, "network.size"),
)

"""Numbers of training records: the agreement of rows in one record, and averages over the records and runs of a method.

Curves are smoothed within a run, and averaged over runs without missing and non-finite values.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.analysis.statistics import mean_interval
from gradhomog.experiments.results.events import Record, numbers

# Norms of homogenized rows are computed from a float64 Gramian: a norm below the square root of its rounding error,
# 1.5e-8 of the largest norm, cannot be distinguished from zero.
_ZERO = 1e-7


def mean_cosine(record: Record) -> float:
    """Mean of the cosines of different tasks; NaN for a single task."""
    cosines = _matrix(record)  # those of zero rows are missing
    return finite_mean(cosines[~np.eye(len(cosines), dtype=bool)].tolist())


def norm_ratio(record: Record) -> float:
    """Largest norm of a row divided by the smallest nonzero norm; NaN for a single task."""
    norms = [norm for norm in numbers(record["norms"]) if norm > 0 and math.isfinite(norm)]
    norms = [norm for norm in norms if norm > _ZERO * max(norms)]
    return max(norms) / min(norms) if len(norms) > 1 else math.nan


def relative_distance(record: Record) -> float:
    """Mean of d_ij = ‖g_i − g_j‖ over pairs of tasks, divided by the mean norm.

    NaN for a single task, or if all rows are zero. d_ij² = n_i² + n_j² − 2 n_i n_j cos_ij. A common factor of all rows
    does not change the result. It is 0 for equal rows, and √2 for orthogonal rows of equal norm. The distance of a row
    to a zero row is its norm.
    """
    norms = np.array(numbers(record["norms"]))
    if len(norms) < 2 or not np.isfinite(norms).all() or not norms.any():
        return math.nan
    norms = norms / norms.mean()
    products = np.outer(norms, norms)
    inner = np.where(products > 0, products * _matrix(record), 0)  # cosines of zero rows are missing
    squares = norms[:, None] ** 2 + norms[None, :] ** 2 - 2 * inner
    return float(np.sqrt(squares[np.triu_indices(len(norms), 1)].clip(0)).mean())


def _matrix(record: Record) -> NDArray[np.float64]:
    return np.array([numbers(row) for row in record["cosines"]])


Runs = dict[tuple[str, str], list[list[Record]]]
"""The records of each run in the order of steps, by (learner, label)."""


def runs_of(records: Iterable[Record], event: str) -> Runs:
    """Records of an event for the runs of the table; runs without a result are omitted."""
    _, *logged = records
    compared = [record for record in logged if record["role"] == "compare"]
    finished = {record["run"] for record in compared if record["event"] == "result"}
    groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in compared:
        if record["event"] == event and record["run"] in finished:
            runs = groups.setdefault((record["learner"], record["label"]), {})
            runs.setdefault(record["run"], []).append(record)
    return {method: list(runs.values()) for method, runs in groups.items()}


def curve(run: Sequence[Record], value: Callable[[Record], float], smooth: bool = True) -> dict[int, float]:
    """The value of each record by step; if `smooth`, the mean over a tenth of the records around it.

    Non-finite values are omitted; NaN only if all values of a window are. Windows are truncated at the ends.
    """
    values = [value(record) for record in run]
    half = round(len(values) / 10) // 2 if smooth else 0
    return {
        record["step"]: finite_mean(values[max(0, index - half) : index + half + 1]) for index, record in enumerate(run)
    }


def average(runs: Sequence[Mapping[int, float]], interval: bool = False) -> dict[int, tuple[float, float, float]]:
    """The mean at each step over the runs `{step: value}` that have this step, with the ends of a band.

    The band is the range over runs; with `interval`, it is the 95 % confidence interval, NaN if fewer than two runs
    have a value.
    """
    curve = {}
    for step in sorted({step for run in runs for step in run}):
        values = [run[step] for run in runs if step in run and math.isfinite(run[step])] or [math.nan]
        found = mean_interval(values)
        low, high = (found.low, found.high) if interval else (min(values), max(values))
        curve[step] = finite_mean(values), low, high
    return curve


def finite_mean(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN without any."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan

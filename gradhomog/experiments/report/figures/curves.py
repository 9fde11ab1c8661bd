"""Curves over training: smoothed within a run, averaged over runs without missing and non-finite values, drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.analysis.statistics import mean_interval
from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.results.records import by_run_and_label, row_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Norms of homogenized rows are computed from a float64 Gramian: a norm below the square root of its rounding error,
# 1.5e-8 of the largest norm, cannot be distinguished from zero.
_ZERO = 1e-7


def mean_cosine(record: Record) -> float:
    """Mean of the cosines of different tasks; NaN for a single task."""
    cosines = _matrix(record)
    pairs = cosines[~np.eye(len(cosines), dtype=bool)]
    pairs = pairs[np.isfinite(pairs)]  # cosines of zero rows are missing
    return float(pairs.mean()) if pairs.size else math.nan


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
    records = list(records)
    results = [record for record in records if record["event"] == "result" and record["role"] == "compare"]
    order = row_order(records)  # the order of the table, which determines the colours in figures
    results.sort(key=lambda record: order.index((record["learner"], record["label"])))
    by_run = by_run_and_label(records, event)
    runs: Runs = {}
    for result in results:
        if run := by_run.get((result["run"], result["label"])):
            runs.setdefault((result["learner"], result["label"]), []).append(run)
    return runs


def curve(run: Sequence[Record], value: Callable[[Record], float], smooth: bool = True) -> dict[int, float]:
    """The value of each record by step; if `smooth`, its running mean over a tenth of the records."""
    values = [value(record) for record in run]
    if smooth:
        values = running_mean(values, max(1, round(len(values) / 10)))
    return {record["step"]: number for record, number in zip(run, values, strict=True)}


@dataclass(frozen=True)
class Curve:
    """Mean over runs at each step, with a band: the lowest and the highest run, or the 95 % interval."""

    steps: list[int]
    middle: list[float]
    low: list[float]
    high: list[float]


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the `window` values around each value; an even window is enlarged by one, and truncated at the ends.

    Non-finite values are omitted; NaN only if all values of a window are.
    """
    half = window // 2
    return [finite_mean(values[max(0, index - half) : index + half + 1]) for index in range(len(values))]


def average(runs: Sequence[Mapping[int, float]], interval: bool = False) -> Curve:
    """The mean at each step over the runs `{step: value}` that have this step; the band is the range over runs.

    With `interval`, the band is the 95 % confidence interval, NaN if fewer than two runs have a value.
    """
    curve = Curve([], [], [], [])
    for step in sorted({step for run in runs for step in run}):
        values = [run[step] for run in runs if step in run and math.isfinite(run[step])] or [math.nan]
        found = mean_interval(values)
        curve.steps.append(step)
        curve.middle.append(finite_mean(values))
        curve.low.append(found.low if interval else min(values))
        curve.high.append(found.high if interval else max(values))
    return curve


def finite_mean(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN without any."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan


_FEW_POINTS = 12

REFERENCE_WIDTH = 2.6
"""The width of the line that others are compared with."""


def draw_curve(
    panel: Axes,
    curve: Curve,
    color: str,
    dashes: str,
    label: str,
    *,
    width: float = 1.3,
    band: bool = False,
    dots: bool = False,
    transform: Callable[[float], float] = float,
) -> None:
    """Draw a line with an optional band. Points have markers if `dots` is True or the line has few points.

    Wide lines are drawn below narrow lines, so that both lines are visible if they coincide. `transform` maps averages
    to values of the axis.
    """
    middle, low, high = ([transform(number) for number in line] for line in (curve.middle, curve.low, curve.high))
    # A line of one point is invisible, and the points of a line of few points are not recognizable.
    marker = "o" if dots or len(curve.steps) < _FEW_POINTS else None
    panel.plot(
        curve.steps, middle, color=color, linestyle=dashes, label=label, linewidth=width,
        marker=marker, markersize=1.3 + width, zorder=3 - 0.1 * width,
    )  # fmt: skip
    if band:
        panel.fill_between(curve.steps, low, high, color=color, alpha=0.1, linewidth=0)
        if len(curve.steps) == 1:  # an area of zero width is invisible
            panel.vlines(curve.steps, low, high, color=color, alpha=0.4, linewidth=width)


def step_axis(panel: Axes) -> None:
    """Format an axis of training steps: integer ticks, and a margin around a single step."""
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel("training step")
    panel.tick_params(labelbottom=True)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    spans = [other.dataLim.intervalx for other in panel.get_shared_x_axes().get_siblings(panel)]
    steps = {float(end) for span in spans for end in span if math.isfinite(end)}
    if len(steps) == 1:
        panel.set_xlim(min(steps) - 1, min(steps) + 1)


def ratio_axis(panel: Axes) -> None:
    """Format a logarithmic axis of ratios with ticks at 1, 2, 3, 5, because ratios rarely span a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(NullLocator())

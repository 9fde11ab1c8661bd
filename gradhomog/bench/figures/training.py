"""What training showed: how the task gradients agree, what weights the methods gave them, and the validation score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradhomog.bench.figures import style
from gradhomog.bench.figures.curves import average, running_mean
from gradhomog.bench.results import PLAIN, Record, numbers, row_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = dict[tuple[str, str], list[list[Record]]]
"""By learner and label, the records of each run, by step."""


def conflict(records: Iterable[Record]) -> Figure | None:
    """Mean cosine between the gradients of two tasks, and the ratio of their norms, over training.

    Of the rows as they are before homogenization. One line per method: the running mean over a tenth of training,
    averaged over seeds; bands reach from the lowest to the highest seed. One pair of panels per learner.
    """
    runs = _runs(records, "step")
    if not any(len(record["norms"]) > 1 for group in runs.values() for run in group for record in run):
        return None
    learners = list(dict.fromkeys(learner for learner, _ in runs))
    with style.drawing():
        figure, axes = style.panels(len(learners), 2, 0.35 + 2.3 * len(learners), sharex=True, width=1.15 * style.WIDTH)
        for learner, (left, right) in zip(learners, axes, strict=True):
            _lines(left, runs, learner, mean_cosine)
            # The axis is logarithmic, and so is the mean: one step with a tiny gradient does not make a peak.
            _lines(right, runs, learner, lambda record: math.log(norm_ratio(record)), shown=math.exp)
            left.axhline(0, **style.GUIDE_LINE)
            left.set_ylabel("mean cosine\nbetween task gradients")
            right.set_ylabel("gradient norm,\nlongest / shortest task")
            right.set_yscale("log")
            _plain_log_ticks(right)
            if len(learners) > 1:
                left.set_title(learner)
        for panel in axes[-1]:
            panel.set_xlabel("training step")
        style.legend(figure, [panel for row in axes for panel in row])
    return figure


def weights(records: Iterable[Record]) -> Figure | None:
    """Each task's share in the step over training, one panel per method that reweights; None if none does.

    Of several training domains, one line per domain, the mean over its tasks; of a single one, one line per rank, from
    the largest weight of the step to the smallest, since slots of tasks that are drawn alike cannot be told apart.
    Running means over a tenth of training, averaged over seeds; 1 is the plain mean.
    """
    runs = {key: group for key, group in _runs(records, "step").items() if _reweights(group)}
    if not runs:
        return None
    domains = sorted({name for group in runs.values() for run in group for record in run for name in record["domains"]})
    lines = _by_domain(domains) if len(domains) > 1 else _by_rank(runs)
    several = len({learner for learner, _ in runs}) > 1
    across = min(3, len(runs))
    down = math.ceil(len(runs) / across)
    with style.drawing():
        width = style.WIDTH * (0.35 + 0.27 * across)
        figure, axes = style.panels(down, across, 0.4 + 1.75 * down, width, sharex=True, sharey=True)
        flat = [panel for row in axes for panel in row]
        for panel in flat[len(runs) :]:
            panel.set_visible(False)
        for panel, ((learner, label), group) in zip(flat, runs.items(), strict=False):
            panel.axhline(1, **style.GUIDE_LINE)
            for name, color, dashes, value in lines:
                curve = average([_curve(run, value) for run in group])
                panel.plot(curve.steps, curve.middle, color=color, linestyle=dashes, label=name)
            panel.set_title(style.wrapped(f"{label} ({learner})" if several else label, 30))
        for index, panel in enumerate(flat[: len(runs)]):
            if index + across >= len(runs):
                panel.set_xlabel("training step")
                panel.tick_params(labelbottom=True)
            if index % across == 0:
                panel.set_ylabel("task weight")
        style.legend(figure, flat[: len(runs)])
    return figure


def validation(records: Iterable[Record], metric: str) -> Figure | None:
    """Validation score over training, averaged over seeds; bands reach from the lowest to the highest seed."""
    runs = _runs(records, "validation")
    if not runs:
        return None
    factor = 100.0 if metric == "accuracy" else 1.0
    learners = list(dict.fromkeys(learner for learner, _ in runs))
    with style.drawing():
        width = style.WIDTH * min(1.15, 0.45 + 0.4 * len(learners))
        figure, axes = style.panels(1, len(learners), 2.6, width, sharey=True)
        for learner, panel in zip(learners, axes[0], strict=True):
            _lines(panel, runs, learner, lambda r: factor * numbers([r["score"]])[0], smooth=False)
            panel.set_xlabel("training step")
            if len(learners) > 1:
                panel.set_title(learner)
        axes[0][0].set_ylabel(style.axis_name(metric, "validation"))
        style.legend(figure, axes[0])
    return figure


def mean_cosine(record: Record) -> float:
    """Mean of the cosines of different tasks; NaN for a single task."""
    cosines = np.array([numbers(row) for row in record["cosines"]])
    pairs = cosines[~np.eye(len(cosines), dtype=bool)]
    pairs = pairs[np.isfinite(pairs)]  # the cosine of a zero row is none
    return float(pairs.mean()) if pairs.size else math.nan


def norm_ratio(record: Record) -> float:
    """Largest row norm over the smallest that is not zero; NaN for a single task."""
    norms = [norm for norm in numbers(record["norms"]) if norm > 0 and math.isfinite(norm)]
    return max(norms) / min(norms) if len(norms) > 1 else math.nan


def _runs(records: Iterable[Record], event: str) -> Runs:
    """Records of an event for the runs of the table. A run without a result is left out."""
    records = list(records)
    results = [record for record in records if record["event"] == "result" and record["role"] == "compare"]
    order = row_order(records)  # that of the table, and with it the colours of its figures
    results.sort(key=lambda record: order.index((record["learner"], record["label"])))
    by_run: dict[str, list[Record]] = {}
    for record in records:
        if record["event"] == event:
            by_run.setdefault(record["run"], []).append(record)
    runs: Runs = {}
    for result in results:
        if result["run"] in by_run:
            found = sorted(by_run[result["run"]], key=lambda record: record["step"])
            runs.setdefault((result["learner"], result["label"]), []).append(found)
    return runs


def _lines(
    panel: Axes,
    runs: Runs,
    learner: str,
    value: Callable[[Record], float],
    smooth: bool = True,
    shown: Callable[[float], float] = float,
) -> None:
    """One line per method of a learner, with a band over seeds; `shown` maps averages to what is drawn."""
    look = style.colors([label for _, label in runs])
    for (owner, label), group in runs.items():
        if owner != learner:
            continue
        color, dashes = look[label]
        curve = average([_curve(run, value, smooth) for run in group])
        # The plain learner lies on top: it is what all others are compared to.
        over = 3 if label == PLAIN else 2
        marker = None if smooth and len(curve.steps) > 2 else "o"  # a line through one point is invisible
        middle, low, high = ([shown(number) for number in line] for line in (curve.middle, curve.low, curve.high))
        panel.plot(
            curve.steps, middle, color=color, linestyle=dashes, label=style.wrapped(label), zorder=over,
            marker=marker, markersize=2.8,
        )  # fmt: skip
        if len(group) > 1:
            panel.fill_between(curve.steps, low, high, color=color, alpha=0.1, linewidth=0)


def _curve(run: Sequence[Record], value: Callable[[Record], float], smooth: bool = True) -> dict[int, float]:
    values = [value(record) for record in run]
    if smooth:
        values = running_mean(values, max(1, round(len(values) / 10)))
    return {record["step"]: number for record, number in zip(run, values, strict=True)}


def _reweights(group: Sequence[Sequence[Record]]) -> bool:
    """Whether any weight differs from the plain mean's by more than rounding does."""
    return any(abs(weight - 1) > 1e-6 for run in group for record in run for weight in numbers(record["weights"]))


def _by_domain(domains: Sequence[str]) -> list[tuple[str, str, str, Callable[[Record], float]]]:
    size = len(style.PALETTE)

    def of(domain: str) -> Callable[[Record], float]:
        def value(record: Record) -> float:
            pairs = zip(record["tasks"], numbers(record["weights"]), strict=False)
            found = [weight for slot, weight in pairs if record["domains"][slot] == domain]
            return sum(found) / len(found) if found else math.nan

        return value

    return [
        (style.wrapped(domain or "(no name)"), style.PALETTE[i % size], style.DASHES[i // size % 4], of(domain))
        for i, domain in enumerate(domains)
    ]


def _by_rank(runs: Runs) -> list[tuple[str, str, str, Callable[[Record], float]]]:
    count = max(len(record["weights"] or ()) for group in runs.values() for run in group for record in run)
    ranks = sorted({round(rank) for rank in np.linspace(0, count - 1, min(count, 5))})

    def of(rank: int) -> Callable[[Record], float]:
        def value(record: Record) -> float:
            ordered = sorted(numbers(record["weights"]), reverse=True)
            return ordered[rank] if rank < len(ordered) else math.nan

        return value

    names = {0: "largest weight", count - 1: "smallest weight"}
    return [(names.get(rank, f"rank {rank + 1}"), style.PALETTE[i], "-", of(rank)) for i, rank in enumerate(ranks)]


def _plain_log_ticks(panel: Axes) -> None:
    """2, 3, 5 instead of powers of ten: ratios rarely span a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(NullLocator())

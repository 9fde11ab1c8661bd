"""Pictures of two task gradients in the plane, their mean, and the directions of homogenizers.

`python docs/_site/plane.py` draws the picture of the README, `images/directions.svg`; the site draws one per method.
Colors have contrast on white and on black, because pages are read in both.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gradhomog

FIRST, SECOND, MEAN, TEXT = "#3b82c4", "#d97706", "#808080", "#7a7a7a"
DIRECTIONS = ("#c026d3", "#16a34a", "#dc2626")
ROWS = {
    "equal norms, conflict": ((1.0, 0.15), (-0.75, 0.68)),
    "norms 4 : 1, agreement": ((1.4, 0.1), (0.12, 0.33)),
    "norms 4 : 1, conflict": ((1.4, 0.1), (-0.2, 0.29)),
}
"""Rows of two tasks, by norms and angle."""

STEPS = 12
"""Steps with the same rows: more than one for methods with state and for methods that draw random numbers."""

mpl.rcParams |= {"svg.hashsalt": "gradhomog", "svg.fonttype": "none", "font.size": 10, "font.family": "sans-serif"}


def losses(step: int) -> list[float]:
    """Losses of two tasks: the first falls faster."""
    return [1.0 * 0.85**step, 0.5 * 0.97**step]


def directions(pipeline: str, rows: Sequence[Sequence[float]], steps: int = STEPS) -> Iterator[tuple[float, float]]:
    """The direction of each of several steps with the same rows, while the losses fall."""
    pipe, jacobian = gradhomog.pipeline(pipeline), torch.tensor(rows)
    for step in range(steps):
        values = losses(step)
        # Of one residual r per task with L = r²: its gradient is 2 r ∂r/∂θ.
        traces = [float(row.square().sum()) / (4 * value) for row, value in zip(jacobian, values, strict=True)]
        first, second = pipe.combine(jacobian, losses=values, kernel_traces=traces).tolist()
        yield first, second


def panel(axes: Axes, rows: Sequence[Sequence[float]], title: str = "") -> None:
    """The plane with the rows and their mean."""
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, color=TEXT, fontsize=10)
    for place, color in zip(rows, (FIRST, SECOND), strict=True):
        arrow(axes, place, color)
    arrow(axes, [sum(each) / 2 for each in zip(*rows, strict=True)], MEAN, linestyle=(0, (3, 2)))
    axes.plot(0, 0, "o", color=TEXT, markersize=3)


def arrow(axes: Axes, tip: Sequence[float], color: str, **style: Any) -> None:
    """An arrow from the origin."""
    keywords = {"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0, "lw": 1.8, "mutation_scale": 11}
    axes.annotate("", xytext=(0, 0), xy=(tip[0], tip[1]), arrowprops=keywords | style)


def limits(figure: Figure, points: Sequence[Sequence[float]]) -> None:
    """The same limits in all panels, around the origin and all points; the figure as high as they need."""
    xs, ys = zip(*points, (0.0, 0.0), strict=True)
    left, right, low, high = min(xs) - 0.1, max(xs) + 0.1, min(ys) - 0.1, max(ys) + 0.1
    for axes in figure.axes:
        axes.set_xlim(left, right)
        axes.set_ylim(low, high)
    width = figure.get_figwidth() / len(figure.axes)
    figure.set_figheight(width * (high - low) / (right - left) + 0.7)  # 0.7 inches: title and legend


def save(figure: Figure, path: Path) -> None:
    """Write an SVG without a date, so that equal pictures are equal files."""
    figure.savefig(path, transparent=True, bbox_inches="tight", pad_inches=0.04, metadata={"Date": None})


def method(pipeline: str) -> Figure:
    """The directions of a method for the rows of `ROWS`; the directions of later steps are darker."""
    figure = Figure(figsize=(7.2, 2), layout="constrained")
    points: list[Sequence[float]] = []
    for axes, (title, rows) in zip(figure.subplots(1, len(ROWS)), ROWS.items(), strict=True):
        panel(axes, rows, title)
        found = list(directions(pipeline, rows))
        for index, tip in enumerate(found):
            arrow(axes, tip, DIRECTIONS[0], alpha=0.25 + 0.75 * (index + 1) / len(found))
        points += [*rows, *found]
    limits(figure, points)
    legend(figure, [("task 1", FIRST), ("task 2", SECOND), ("mean", MEAN), (pipeline.partition("(")[0], DIRECTIONS[0])])
    return figure


def legend(figure: Figure, entries: Sequence[tuple[str, str]]) -> None:
    """One line of colored names below the panels."""
    handles = [mpl.lines.Line2D([], [], color=color, lw=2) for _, color in entries]
    names = [name for name, _ in entries]
    figure.legend(handles, names, loc="outside lower center", ncols=len(entries), frameon=False, labelcolor=TEXT)


def readme() -> Figure:
    """Two gradients that conflict and differ in norm, their mean, and the directions of three methods."""
    rows = ((1.5, 0.3), (-0.42, 0.72))
    methods = {"reweight(beta=0, solver='fixed_point')": "reweight", "pcgrad": "pcgrad", "mgda": "mgda"}
    figure = Figure(figsize=(8, 2), layout="constrained")
    first, *others = figure.subplots(1, 4)
    panel(first, rows, "plain mean")
    points: list[Sequence[float]] = [*rows]
    for axes, (pipeline, name), color in zip(others, methods.items(), DIRECTIONS, strict=True):
        panel(axes, rows, f"direction of {name}")
        axes.title.set_color(color)
        [tip] = directions(pipeline, rows, steps=1)
        arrow(axes, tip, color, lw=2.8, mutation_scale=15)
        points.append(tip)
    limits(figure, points)
    legend(figure, [("gradient of task 1", FIRST), ("gradient of task 2", SECOND), ("their mean", MEAN)])
    return figure


if __name__ == "__main__":
    save(readme(), Path(__file__).parents[1] / "images" / "directions.svg")

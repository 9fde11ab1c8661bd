"""Paths of each method on the contours of a two-dimensional problem, one panel per method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gradhomog.experiments.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradhomog.experiments.results.trajectory import Trajectory

LEVELS = 12


def trajectories(found: Mapping[tuple[str, str], Trajectory]) -> Figure | None:
    """Contours of the mean loss, the Pareto set as a grey line, and a path from each start; None without paths."""
    if not found:
        return None
    across = min(3, len(found))
    down = math.ceil(len(found) / across)
    with style.drawing():
        size = style.WIDTH / 3
        figure, axes = style.panels(down, across, (size + 0.2) * down, size * across, sharex=True, sharey=True)
        flat = [panel for row in axes for panel in row]
        for panel in flat[len(found) :]:
            panel.set_visible(False)
        for index, (panel, ((_, label), trajectory)) in enumerate(zip(flat, found.items(), strict=False)):
            _draw(panel, trajectory)
            panel.set_title(style.wrapped(label, 30))
            if index + across >= len(found):
                panel.set_xlabel("x₁")
                panel.tick_params(labelbottom=True)
            if index % across == 0:
                panel.set_ylabel("x₂")
    return figure


def _draw(panel: Axes, trajectory: Trajectory) -> None:
    panel.set_aspect("equal")
    panel.grid(False)
    axis = trajectory.axis
    panel.contour(axis, axis, trajectory.surface, LEVELS, cmap="viridis", linewidths=0.7, alpha=0.8, zorder=1)
    panel.plot(*trajectory.front.T, color=style.GUIDE, linewidth=3.5, solid_capstyle="round", zorder=2)
    for start in range(trajectory.path.shape[1]):
        path = trajectory.path[:, start]
        panel.plot(*path.T, color=style.PALETTE[1], linewidth=1.6, zorder=3)
        panel.plot(*path[0], "o", color="black", markersize=4, zorder=4)
        panel.plot(
            *path[-1], "X", color="black", markersize=5.5, markeredgecolor="white", markeredgewidth=0.6, zorder=5
        )

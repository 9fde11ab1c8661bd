"""Figure of the optimization paths on the contours of a two-dimensional problem, one panel per method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gradhomog.experiments.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradhomog.experiments.results.artifacts import Trajectory

LEVELS = 12


def trajectories(by_method: Mapping[tuple[str, str], Trajectory]) -> Figure | None:
    """Contours of the mean loss, the Pareto set as a grey line, and a path from each start; None without paths."""
    if not by_method:
        return None
    with style.figure_style():
        figure, panels, lowest, leftmost = style.make_panel_list(len(by_method), 3, 2.6, 2.0, sharex=True, sharey=True)
        for panel, ((_, label), trajectory) in zip(panels, by_method.items(), strict=True):
            _draw(panel, trajectory)
            panel.set_title(style.wrap_label(label, 30))
        for panel in lowest:
            panel.set_xlabel("x₁")
            panel.tick_params(labelbottom=True)
        for panel in leftmost:
            panel.set_ylabel("x₂")
    return figure


def _draw(panel: Axes, trajectory: Trajectory) -> None:
    panel.set_aspect("equal")
    panel.grid(False)
    axis = trajectory.axis
    panel.contour(axis, axis, trajectory.surface, LEVELS, cmap="viridis", linewidths=0.7, alpha=0.8, zorder=1)
    panel.plot(*trajectory.front.T, color=style.GUIDE_COLOR, linewidth=3.5, solid_capstyle="round", zorder=2)
    for start in range(trajectory.path.shape[1]):
        path = trajectory.path[:, start]
        panel.plot(*path.T, color=style.PALETTE[1], linewidth=1.6, zorder=3)
        panel.plot(*path[0], "o", color="black", markersize=4, zorder=4)
        panel.plot(
            *path[-1], "X", color="black", markersize=5.5, markeredgecolor="white", markeredgewidth=0.6, zorder=5
        )

"""Figure of the conflict of domains: cosines of single rows and of expected gradients, and norms by domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradhomog.experiments.report.figures import style
from gradhomog.experiments.reproduce.domain_conflict import DomainConflict, StageConflict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 6
"""Further points of training are left out, evenly; the first and the last are drawn."""


def domain_conflict(points: Sequence[DomainConflict]) -> Figure | None:
    """One row of panels per point of training, before (black) and after (blue) all homogenizers; None without points.

    Left: the cosine of expected gradients over the mean cosine of single rows, one dot per pair of domains, with 95 %
    intervals. Pairs whose expected gradients are unresolved have no dot; their number is in the panel. Right: the mean
    norm of single rows (dots) and the norm of the expected gradient (crosses) by domain.
    """
    points = _evenly(points)
    if not points:
        return None
    with style.figure_style():
        figure, axes = style.make_panels(
            len(points), 2, 0.7 + 2.2 * len(points), 1.1 * style.WIDTH, sharex="col", sharey="col"
        )
        for point, (left, right) in zip(points, axes, strict=True):
            ends = [point.stages[0]] if len(point.stages) == 1 else [point.stages[0], point.stages[-1]]
            missing = []
            for stage, look in zip(ends, _LOOKS, strict=False):
                missing.append(_draw_cosines(left, stage, look))
                _draw_norms(right, stage, look, shift=len(ends) > 1)
            _format(point, left, right, missing)
        low, high = axes[-1][0].get_ylim()  # shared by all panels; without a resolved pair it would be arbitrary
        axes[-1][0].set_ylim(min(low, -1.1), max(high, 1.1))
        axes[-1][1].set_ylim(bottom=0)  # after all panels are drawn: it ends the automatic choice of the upper limit
        axes[-1][0].set_xlabel("cosine of single rows")
        names = [style.wrap_label(name, 14) for name in points[-1].domains]
        axes[-1][1].set_xticks(range(len(names)), names, rotation=30, ha="right")
        style.add_legend(figure, [panel for row in axes for panel in row])
    return figure


def _evenly(points: Sequence[DomainConflict]) -> list[DomainConflict]:
    if len(points) <= MAX_POINTS:
        return list(points)
    return [points[round(index * (len(points) - 1) / (MAX_POINTS - 1))] for index in range(MAX_POINTS)]


@dataclass(frozen=True)
class _Look:
    """Appearance of one stage: the earlier has larger markers, so that both are visible if they coincide."""

    when: str
    color: str
    size: float
    offset: float


_LOOKS = (_Look("before", style.PLAIN_COLOR, 5.5, -0.15), _Look("after", style.PALETTE[0], 3.5, 0.15))


def _draw_cosines(panel: Axes, stage: StageConflict, look: _Look) -> int:
    """Draw the pairs of one stage; return the number of unresolved pairs."""
    domains = len(stage.expected.norms.value)
    rows, columns = torch.triu_indices(domains, domains, 1)
    single, expected = stage.single.cosines, stage.expected.cosines
    resolved = (single.value.isfinite() & expected.value.isfinite())[rows, columns]
    place = rows[resolved], columns[resolved]
    panel.errorbar(
        single.value[place].numpy(), expected.value[place].numpy(), xerr=single.half_width[place].numpy(),
        yerr=expected.half_width[place].numpy(), fmt="o", color=look.color, markersize=look.size, linewidth=0.6,
    )  # fmt: skip
    return int((~resolved).sum())


def _draw_norms(panel: Axes, stage: StageConflict, look: _Look, shift: bool) -> None:
    places = torch.arange(len(stage.single.norms.value)) + (look.offset if shift else 0.0)
    for estimate, marker, quantity in (
        (stage.single.norms, "o", "mean norm"), (stage.expected.norms, "x", "norm of mean"),
    ):  # fmt: skip
        found = estimate.value.isfinite()
        panel.errorbar(
            places[found].numpy(), estimate.value[found].numpy(), yerr=estimate.half_width[found].numpy(), fmt=marker,
            color=look.color, markersize=4, linewidth=0.8, label=f"{quantity}, {look.when}",
        )  # fmt: skip


def _format(point: DomainConflict, left: Axes, right: Axes, missing: Sequence[int]) -> None:
    pairs = len(point.domains) * (len(point.domains) - 1) // 2
    left.axhline(0, **style.GUIDE_LINE)
    left.axline((0, 0), slope=1, **style.GUIDE_LINE)
    left.set_title(f"after {point.step} steps")
    left.set_ylabel("cosine of\nexpected gradients")
    if any(missing):
        counts = " and ".join(map(str, missing))
        left.annotate(
            f"unresolved: {counts} of {pairs} pairs", (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=7
        )
    right.set_ylabel("norm")

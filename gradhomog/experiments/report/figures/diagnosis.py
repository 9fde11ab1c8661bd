"""Figure of a diagnosis: cosines and conflict by pair of tasks, and noise scales by task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradhomog.diagnosis.result import DiagnosisResult, pair_order
from gradhomog.experiments.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PAIRS = 20
"""Pairs with larger cosines of expected gradients are left out."""


def diagnosis(found: DiagnosisResult) -> Figure:
    """Left: cosines of single rows (dots) and of expected gradients (crosses with 95 % intervals) by pair of tasks.
    Middle: the conflict rate of single rows, and the rate of independent rows. Right: noise scales by task, and of the
    plain step, on a logarithmic axis; scales of less than 0.01 are drawn at 0.01. Unresolved estimates have no mark.
    """
    pairs = pair_order(found)[:MAX_PAIRS]
    lines = max(len(pairs), len(found.tasks) + 1)
    with style.figure_style():
        widths = [3, 2, 2] if pairs else [1]
        figure, [panels] = style.make_panels(
            1, len(widths), 1.1 + 0.22 * lines, 1.25 * style.WIDTH, gridspec_kw={"width_ratios": widths}
        )
        if pairs:
            _draw_pairs(panels[0], panels[1], found, pairs)
        _draw_noise_scales(panels[-1], found)
        style.add_legend(figure, panels)
    return figure


def _draw_pairs(cosines: Axes, rates: Axes, found: DiagnosisResult, pairs: list[tuple[int, int]]) -> None:
    index = tuple(map(list, zip(*pairs, strict=True)))
    places = np.arange(len(pairs))
    for panel, factor, marks in (
        (cosines, 1, (("single rows", found.single.cosines, "o"), ("expected gradients", found.expected.cosines, "x"))),
        (rates, 100, (
            ("single rows", found.single.conflict_rates, "o"),
            ("independent rows", found.single.independent_conflict_rates, "s"),
        )),
    ):  # fmt: skip
        for row, (label, estimate, marker) in enumerate(marks):
            color = style.PLAIN_COLOR if label == "single rows" else style.PALETTE[0 if marker == "x" else 1]
            panel.errorbar(
                factor * estimate.value[index].numpy(), places + 0.16 * (row - 0.5),
                xerr=factor * estimate.half_width[index].numpy(), fmt=marker, color=color, markersize=4, linewidth=0.8,
                label=label,
            )  # fmt: skip
    names = [style.wrap_label(f"{found.tasks[i]}, {found.tasks[j]}", 40) for i, j in pairs]
    cosines.set_yticks(places, names)
    rates.set_yticks(places, [""] * len(pairs))
    cosines.axvline(0, **style.GUIDE_LINE)
    cosines.set_xlim(min(-1.05, cosines.get_xlim()[0]), max(1.05, cosines.get_xlim()[1]))
    rates.set_xlim(-3, 103)
    cosines.set_title("cosine")
    rates.set_title("conflict (%)")
    for panel in (cosines, rates):
        panel.set_ylim(len(pairs) - 0.5, -0.5)


def _draw_noise_scales(panel: Axes, found: DiagnosisResult) -> None:
    parts = [
        np.append(_floor(getattr(found.noise.noise_scales, name)), _floor(getattr(found.noise.step_noise_scale, name)))
        for name in ("value", "low", "high")
    ]
    value, low, high = parts
    finite = [float(end) for end in np.concatenate(parts) if np.isfinite(end)]
    bottom, top = min([1.0, *finite]) / 3, max([1.0, *finite]) * 3
    places = np.arange(len(value))
    resolved = np.isfinite(low)  # infinite: the whole interval of the signal is negative
    panel.hlines(
        places[resolved], low[resolved], np.minimum(high, top)[resolved], color=style.PALETTE[2], linewidth=0.8
    )
    drawn = np.isfinite(value)
    panel.plot(value[drawn], places[drawn], "D", color=style.PALETTE[2], markersize=4, label="noise scale")
    panel.set_xscale("log")
    panel.set_xlim(bottom, top)
    panel.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    panel.xaxis.set_minor_formatter(lambda value, place: "")
    panel.axvline(1, **style.GUIDE_LINE)
    panel.set_yticks(places, [*(style.wrap_label(name, 20) for name in found.tasks), "plain step"])
    panel.set_ylim(len(value) - 0.5, -0.5)
    panel.set_title("noise / signal")


def _floor(values: Tensor) -> NDArray[np.float64]:
    floored: NDArray[np.float64] = values.clamp_min(0.01).numpy()
    return floored

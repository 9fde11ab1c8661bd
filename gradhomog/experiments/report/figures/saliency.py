"""Test images with SmoothGrad saliency of the trained networks, and with the maps of homogenizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.report.figures import style
from gradhomog.experiments.results.plan import PLAIN
from gradhomog.experiments.results.saliency_maps import SaliencyMaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Picture = NDArray[np.float64]

METHODS = 12
"""Rows of saliency; of more methods the caption names those that are left out."""
MAPS = 6
"""Rows of maps."""
CELL = 0.82
"""Inches."""


@dataclass(frozen=True)
class Row:
    """A row of the figure: `heat` is drawn over the images, `notes` in their corners, one of each per image."""

    label: str
    heat: Sequence[Picture]
    notes: Sequence[str]
    opacity: float


def saliency(found: Mapping[tuple[str, str], SaliencyMaps]) -> Figure | None:
    """A column per image; the images, then saliency over them by method, then the maps of homogenizers over them.

    Saliency: the largest magnitude over the channels, scaled per image to its 99th percentile. Maps: scaled per row;
    the label has the range. `saliency_omissions` names methods that are not drawn. None if there is neither.
    """
    found = _comparable(found)
    rows = [*_saliency_rows(found), *_map_rows(found)]
    if not rows:
        return None
    first = next(iter(found.values()))
    pictures = [grey(image) for image in first.images]
    with style.drawing():
        width, height = 1.9 + CELL * len(pictures), 0.4 + CELL * (1 + len(rows))
        figure, axes = style.panels(1 + len(rows), len(pictures), height, width)
        for panel, image, domain in zip(axes[0], first.images, first.domains, strict=True):
            _show(panel, np.clip((image.transpose(1, 2, 0) + 1) / 2, 0, 1))
            panel.set_title(style.wrapped(domain, 13), fontsize=8, loc="center")
        _label(axes[0][0], "image")
        for line, row in zip(axes[1:], rows, strict=True):
            _label(line[0], row.label)
            for panel, picture, heat, note in zip(line, pictures, row.heat, row.notes, strict=True):
                _show(panel, over(picture, heat, row.opacity))
                _note(panel, note)
    return figure


def saliency_omissions(found: Mapping[tuple[str, str], SaliencyMaps], methods: Sequence[tuple[str, str]]) -> list[str]:
    """Sentences that name the methods of the table whose saliency or maps the figure leaves out, with the reason."""
    same = _comparable(found)
    drawn = _drawn(same)
    reasons: dict[str, list[str]] = {}
    for pair in methods:
        if pair in drawn:
            continue
        if pair not in found:
            reason = "no saliency was saved by its runs"
        elif pair not in same:
            reason = "its run used other test images"
        elif same[pair].saliency is None:
            reason = "its outputs are not differentiable w.r.t. the images"
        else:
            reason = f"the figure has rows for {METHODS} methods"
        reasons.setdefault(reason, []).append(_name(pair, dict.fromkeys(methods)))
    lines = [f"Without saliency: {', '.join(names)} ({reason})." for reason, names in reasons.items()]
    having = [pair for pair, own in same.items() if own.maps]
    if without := having[1:-1]:
        names = ", ".join(_name(pair, same) for pair in without)
        lines.append(f"Without maps: {names} (those of the first and the last method with maps are drawn).")
    return [" ".join(line.split()) for line in lines]


def _comparable(found: Mapping[tuple[str, str], SaliencyMaps]) -> dict[tuple[str, str], SaliencyMaps]:
    """Those with the images of the first one: a column of the figure is one image."""
    first = next(iter(found.values()), None)
    return {pair: own for pair, own in found.items() if first is not None and np.array_equal(own.images, first.images)}


def _drawn(found: Mapping[tuple[str, str], SaliencyMaps]) -> list[tuple[str, str]]:
    """The methods with a row of saliency, in the order of the table: plain first if room is short, then those that act
    on the encoder, whose saliency may differ most."""
    shown = [pair for pair, own in found.items() if own.saliency is not None]
    ranked = sorted(shown, key=lambda pair: (pair[1] != PLAIN, not (found[pair].maps or found[pair].attached)))
    return [pair for pair in shown if pair in ranked[:METHODS]]


def grey(image: NDArray[Any]) -> Picture:
    """Brightness `[height, width]` in [0, 1] of an image `[channels, height, width]` in [-1, 1]."""
    brightness: Picture = np.clip((image.astype(np.float64).mean(0) + 1) / 2, 0, 1)
    return brightness


def strength(saliency: NDArray[Any]) -> Picture:
    """Saliency `[channels, height, width]` as `[height, width]` in [0, 1]; zero everywhere if it is.

    The 99th percentile is 1, as in the authors' code: one pixel would otherwise darken all others.
    """
    magnitude: Picture = np.nan_to_num(np.abs(saliency.astype(np.float64)).max(0))
    top = float(np.percentile(magnitude, 99)) or float(magnitude.max()) or 1.0
    return (magnitude / top).clip(0, 1)


def over(picture: Picture, heat: Picture, opacity: float) -> Picture:
    """Heat in [0, 1], of any resolution, in colour over a darkened picture `[height, width]`: RGB.

    `opacity` is that of heat 1, at least 0.3, which is that of heat 0.
    """
    import matplotlib

    height, width = picture.shape
    rows = np.arange(height) * heat.shape[0] // height
    columns = np.arange(width) * heat.shape[1] // width
    fine = heat[rows][:, columns]
    colour = matplotlib.colormaps["inferno"](fine)[..., :3]
    alpha = 0.3 + (opacity - 0.3) * fine[..., None]
    blended: Picture = (1 - alpha) * (0.7 * picture[..., None]) + alpha * colour
    return blended


def _saliency_rows(found: Mapping[tuple[str, str], SaliencyMaps]) -> list[Row]:
    rows: list[Row] = []
    for pair in _drawn(found):
        own = found[pair]
        notes = [f"{probability:.2f}" for probability in own.probabilities]
        strengths = [strength(saliency) for saliency in own.saliency] if own.saliency is not None else []
        rows.append(Row(f"saliency:\n{_name(pair, found)}", strengths, notes, 0.9))
    return rows


def _map_rows(found: Mapping[tuple[str, str], SaliencyMaps]) -> list[Row]:
    having = [pair for pair, own in found.items() if own.maps]
    rows: list[Row] = []
    # Many methods share a homogenizer; the last one often has most of them.
    for pair in dict.fromkeys([*having[:1], *having[-1:]]):
        maps = found[pair].maps
        room = MAPS // min(len(having), 2)
        for index in sorted({round(place) for place in np.linspace(0, len(maps) - 1, min(room, len(maps)))}):
            name, values = list(maps.items())[index]
            values = np.nan_to_num(values.astype(np.float64))
            top = float(values.max())
            heat = list(np.clip(values / top, 0, 1) if top > 0 else np.zeros_like(values))
            beside = f"\nin {_name(pair, found)}" if len(having) > 1 else ""
            label = f"map of {style.wrapped(name, 26)}{beside}\n0 to {top:.2g}"
            rows.append(Row(label, heat, [""] * len(heat), 0.65))  # the shape below wide areas must stay visible
    return rows


def _name(pair: tuple[str, str], found: Iterable[tuple[str, str]]) -> str:
    learner, label = pair
    several = len({other for other, _ in found}) > 1
    return style.wrapped(f"{label} ({learner})" if several else label, 26)


def _label(panel: Axes, text: str) -> None:
    panel.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8)


def _note(panel: Axes, text: str) -> None:
    """Text in the corner of a picture, legible on dark and bright."""
    from matplotlib.patheffects import withStroke

    # Not quite black and white: those colours follow the colour scheme of a page, and pictures do not.
    edge = [withStroke(linewidth=1.5, foreground="#010101")]
    panel.annotate(text, (0.04, 0.04), xycoords="axes fraction", fontsize=7.5, color="#fefefe", path_effects=edge)


def _show(panel: Axes, rgb: NDArray[Any]) -> None:
    # Without interpolation: an SVG then holds the pixels in their own resolution.
    panel.imshow(rgb.squeeze(-1) if rgb.shape[-1] == 1 else rgb, cmap="gray", vmin=0, vmax=1, interpolation="none")
    panel.set_xticks([])
    panel.set_yticks([])
    panel.grid(False)
    for side in panel.spines.values():
        side.set_visible(False)

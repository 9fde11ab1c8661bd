"""Figure of test images with SmoothGrad saliency of the trained networks, and with the maps of homogenizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.report.figures import style
from gradhomog.experiments.results.artifacts import SaliencyMaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Picture = NDArray[np.float64]

MAX_METHODS = 12
"""Maximum number of rows with saliency."""
MAX_MAPS = 6
"""Maximum number of rows with maps."""
CELL_SIZE = 0.82
"""Inches."""


@dataclass(frozen=True)
class ImageRow:
    """A row of images in the figure: `heat` is drawn over each image, and a note in its corner."""

    label: str
    heat: Sequence[Picture]
    notes: Sequence[str]
    opacity: float


def saliency(looks: Mapping[tuple[str, str], SaliencyMaps]) -> Figure | None:
    """One column per image: the image, then the image overlaid with the saliency of each method, then with maps.

    Saliency: the largest magnitude over the channels, scaled per image to its 99th percentile. Maps of homogenizers:
    scaled per row; the label has the range. None if there is neither saliency nor a map.
    """
    rows = [*_saliency_rows(looks), *_map_rows(looks)]
    if not rows:
        return None
    first = next(iter(looks.values()))
    pictures = [brightness(image) for image in first.images]
    with style.figure_style():
        width, height = 1.9 + CELL_SIZE * len(pictures), 0.4 + CELL_SIZE * (1 + len(rows))
        figure, axes = style.make_panels(1 + len(rows), len(pictures), height, width)
        for panel, image, domain in zip(axes[0], first.images, first.domains, strict=True):
            _draw_image(panel, np.clip((image.transpose(1, 2, 0) + 1) / 2, 0, 1))
            panel.set_title(style.wrap_label(domain, 13), fontsize=8, loc="center")
        _label(axes[0][0], "image")
        for line, row in zip(axes[1:], rows, strict=True):
            _label(line[0], row.label)
            for panel, picture, heat, note in zip(line, pictures, row.heat, row.notes, strict=True):
                _draw_image(panel, overlay(picture, heat, row.opacity))
                _draw_note(panel, note)
    return figure


def brightness(image: NDArray[Any]) -> Picture:
    """Brightness `[height, width]` in [0, 1] of an image `[channels, height, width]` in [-1, 1]."""
    grey: Picture = np.clip((image.astype(np.float64).mean(0) + 1) / 2, 0, 1)
    return grey


def scaled_magnitude(saliency: NDArray[Any]) -> Picture:
    """Magnitude `[height, width]` in [0, 1] of saliency `[channels, height, width]`; zero saliency remains zero.

    The 99th percentile is scaled to 1, as in the authors' code; otherwise a single pixel could darken all others.
    """
    magnitude: Picture = np.nan_to_num(np.abs(saliency.astype(np.float64)).max(0))
    top = float(np.percentile(magnitude, 99)) or float(magnitude.max()) or 1.0
    return (magnitude / top).clip(0, 1)


def overlay(picture: Picture, heat: Picture, opacity: float) -> Picture:
    """An RGB image of heat in [0, 1], of any resolution, in colour over a darkened picture `[height, width]`.

    `opacity` ≥ 0.3 is the opacity of heat 1; the opacity of heat 0 is 0.3.
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


def _saliency_rows(looks: Mapping[tuple[str, str], SaliencyMaps]) -> list[ImageRow]:
    """The first methods with saliency in the order of the table; plain is the first of them."""
    rows: list[ImageRow] = []
    for pair, look in looks.items():
        if look.saliency is not None:
            notes = [f"{probability:.2f}" for probability in look.probabilities]
            heat = [scaled_magnitude(saliency) for saliency in look.saliency]
            rows.append(ImageRow(f"saliency:\n{_method_name(pair, looks)}", heat, notes, 0.9))
    return rows[:MAX_METHODS]


def _map_rows(looks: Mapping[tuple[str, str], SaliencyMaps]) -> list[ImageRow]:
    with_maps = [pair for pair, look in looks.items() if look.maps]
    rows: list[ImageRow] = []
    # Only the first and the last method: many methods share a homogenizer, and the last method often has most of them.
    for pair in dict.fromkeys([*with_maps[:1], *with_maps[-1:]]):
        maps = looks[pair].maps
        count = min(MAX_MAPS // min(len(with_maps), 2), len(maps))
        for index in sorted({round(place) for place in np.linspace(0, len(maps) - 1, count)}):
            name, values = list(maps.items())[index]
            values = np.nan_to_num(values.astype(np.float64))
            top = float(values.max())
            heat = list(np.clip(values / top, 0, 1) if top > 0 else np.zeros_like(values))
            method = f"\nin {_method_name(pair, looks)}" if len(with_maps) > 1 else ""
            label = f"map of {style.wrap_label(name, 26)}{method}\n0 to {top:.2g}"
            rows.append(ImageRow(label, heat, [""] * len(heat), 0.65))  # the image must be visible below large areas
    return rows


def _method_name(pair: tuple[str, str], pairs: Iterable[tuple[str, str]]) -> str:
    learner, label = pair
    several = len({other for other, _ in pairs}) > 1
    return style.wrap_label(f"{label} ({learner})" if several else label, 26)


def _label(panel: Axes, text: str) -> None:
    panel.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8)


def _draw_note(panel: Axes, text: str) -> None:
    """Draw text in the corner of an image, legible on dark and bright images."""
    from matplotlib.patheffects import withStroke

    # Not exactly black and white: the page replaces these colours by its colour scheme, which images do not follow.
    edge = [withStroke(linewidth=1.5, foreground="#010101")]
    panel.annotate(text, (0.04, 0.04), xycoords="axes fraction", fontsize=7.5, color="#fefefe", path_effects=edge)


def _draw_image(panel: Axes, rgb: NDArray[Any]) -> None:
    # Without interpolation, an SVG contains the pixels in their original resolution.
    panel.imshow(rgb.squeeze(-1) if rgb.shape[-1] == 1 else rgb, cmap="gray", vmin=0, vmax=1, interpolation="none")
    panel.set_xticks([])
    panel.set_yticks([])
    panel.grid(False)
    for side in panel.spines.values():
        side.set_visible(False)

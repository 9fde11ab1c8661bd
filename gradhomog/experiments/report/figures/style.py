"""Style of all figures, and saving them to files; the same figure always gives the same bytes."""

from __future__ import annotations

import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gradhomog.errors import GradhomogError
from gradhomog.experiments.results.atomic_files import atomic_write, write_bytes
from gradhomog.experiments.runs import PLAIN
from gradhomog.experiments.score_metrics import metric
from gradhomog.terminal import escape_controls

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradhomog.experiments.analysis.summary import Summary

# Okabe & Ito (2008), "Color universal design", without black, which is similar to the colour of the plain learner, and
# with yellow last, because it is hard to see on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442")
DASHES = ("-", "--", ":", "-.")
PLAIN_COLOR = "#222222"
GUIDE_COLOR = "#888888"
GUIDE_LINE: dict[str, Any] = {"color": GUIDE_COLOR, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}
"""Style of reference lines: the plain learner, the plain mean, no difference."""
WIDTH = 7.2
"""Width of figures in inches, two columns of a paper."""


class MissingMatplotlib(GradhomogError):
    """Figures cannot be drawn because matplotlib is not installed."""


@contextmanager
def figure_style() -> Iterator[None]:
    """Context with the style of `figures.mplstyle` instead of the user's matplotlibrc, which is restored on exit."""
    try:
        import matplotlib.figure
    except ImportError as cause:
        raise MissingMatplotlib(
            "cannot draw figures: matplotlib is not installed. Run: pip install 'gradhomog[plot]'"
        ) from cause
    with matplotlib.rc_context(fname=Path(__file__).with_name("figures.mplstyle")):
        yield


def make_panels(
    rows: int, columns: int, height: float, width: float = WIDTH, **options: object
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of this size in inches with a grid of axes; call it within `figure_style`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)  # type: ignore[call-overload]
    return figure, [list(row) for row in axes]


Key = TypeVar("Key")


def panel_figure(
    titles: Mapping[Key, str],
    draw: Callable[[Axes, Key], None],
    x_axis: Callable[[Axes], None],
    y_label: str,
    row_height: float,
    column_width: float,
    legend: bool = False,
    **options: object,
) -> Figure:
    """A figure with one panel per title, in rows of at most three.

    Args:
        draw: draws the content of a panel.
        x_axis: formats the horizontal axis; called for the lowest panel of each column, or for all if they share none.
        y_label: label of the first panel of each row.
        options: `sharex` and `sharey` of matplotlib.
    """
    count, columns = len(titles), min(3, len(titles))
    rows = -(-count // columns)
    with figure_style():
        figure, axes = make_panels(rows, columns, 0.4 + row_height * rows, 2.5 + column_width * columns, **options)
        panels = [panel for row in axes for panel in row]
        for panel in panels[count:]:
            panel.set_visible(False)
        for panel, (key, title) in zip(panels, titles.items(), strict=False):
            draw(panel, key)
            panel.set_title(wrap_label(title, 30) if title else "")
        for panel in panels[max(0, count - columns) if options.get("sharex") else 0 : count]:
            x_axis(panel)
        for panel in panels[:count:columns]:
            panel.set_ylabel(y_label)
        if legend:
            add_legend(figure, panels[:count])
    return figure


def colors(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and line style of each label; if there are more labels than colours, colours repeat with other dashes."""
    others = [label for label in dict.fromkeys(labels) if label != PLAIN]
    size = len(PALETTE)
    styles = {label: (PALETTE[i % size], DASHES[i // size % len(DASHES)]) for i, label in enumerate(others)}
    return {PLAIN: (PLAIN_COLOR, "-"), **styles}


def wrap_label(label: str, width: int = 26) -> str:
    """A label wrapped to lines of at most `width` characters; only longer words are broken."""
    lines = [""]
    for piece in re.split(r"(?<=[ (,:=_/+])", label):
        if len(lines[-1]) + len(piece.rstrip()) <= width:
            lines[-1] += piece
        else:
            lines += textwrap.wrap(piece, width) or [""]
            lines[-1] += " " * piece.endswith(" ")
    return "\n".join(line.rstrip() for line in lines if line.strip()) or label


def score_axis_label(summary: Summary, split: Literal["test", "validation"]) -> str:
    """The label of an axis of scores, with its unit."""
    return f"{summary.score_name(split)}{' (%)' if metric(summary.metric).percent else ''}"


def add_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Add one legend for all panels to the right of them, without duplicate entries."""
    entries = {
        label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    legend = figure.legend(
        list(entries.values()), list(entries), loc="outside right upper", handlelength=1.8, labelspacing=0.7
    )
    # Increase the height of the figure to that of the legend: parts outside the figure are not saved.
    legend_height = legend.get_window_extent().height / figure.dpi + 0.3
    figure.set_figheight(max(figure.get_figheight(), legend_height))


def svg_text(figure: Figure) -> str:
    """The figure as SVG, without a date."""
    content = io.StringIO()
    with figure_style():
        figure.savefig(content, format="svg", metadata={"Date": None})
    return escape_controls(content.getvalue(), keep="\n\t")  # also in comments


def save(figure: Figure, stem: str | Path) -> tuple[Path, Path]:
    """Write `stem.svg` and `stem.png` (200 dpi), without dates, and return the two paths."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    svg, png = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    write_bytes(svg, svg_text(figure).encode())
    with figure_style(), atomic_write(png) as new_png:
        figure.savefig(new_png, format="png", dpi=200, metadata={"Software": None})
    return svg, png


def save_figures(draw: Callable[[], Mapping[str, Figure | None]], folder: Path) -> dict[str, Path]:
    """Save the figures with data, and return the SVG files by name; without matplotlib, print a message instead."""
    try:
        return {name: save(figure, folder / name)[0] for name, figure in draw().items() if figure}
    except MissingMatplotlib as error:
        print(error, file=sys.stderr)
        return {}

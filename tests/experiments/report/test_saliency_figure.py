"""The saliency figure: which methods and maps are drawn, and images of any size."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from gradhomog.experiments.report import figures
from gradhomog.experiments.report.figures.saliency import MAX_METHODS, brightness, overlay, scaled_magnitude
from gradhomog.experiments.results.comparison_dir import run_dir
from gradhomog.experiments.results.runs import Run
from gradhomog.experiments.results.saliency_maps import SaliencyMaps
from tests.experiments.report.test_page import report
from tests.experiments.synthetic_records import comparison


def look(seed=0, channels=1, maps=(), **more):
    same, own = np.random.default_rng(0), np.random.default_rng(seed)
    shape = (3, channels, 8, 8)
    found = {
        "images": same.uniform(-1, 1, shape).astype(np.float32),
        "domains": ("glyphs:georgian", "cub", "<script>"),
        "probabilities": own.uniform(size=3).astype(np.float32),
        "saliency": own.normal(size=shape).astype(np.float32),
        "maps": {name: own.uniform(size=(3, 4, 4)).astype(np.float32) for name in maps},
    }
    return SaliencyMaps(**(found | more))


def labels(figure):
    """The labels of the rows, with spaces instead of line breaks."""
    return [" ".join(axes.get_ylabel().split()) for axes in figure.axes[::3]]


def of_methods(count, **more):
    return {("maml", f"m{number}"): look(number, **more) for number in range(count)}


def test_all_methods_are_drawn_up_to_the_maximum():
    found = {("maml", "plain"): look(), ("maml", "x"): look(saliency=None), **of_methods(MAX_METHODS)}
    shown = labels(figures.saliency(found))
    assert shown == ["image", "saliency: plain", *(f"saliency: m{number}" for number in range(MAX_METHODS - 1))]


def test_only_some_maps_of_the_first_and_the_last_method_are_drawn():
    names = [f"isi: {layer}" for layer in range(9)]
    found = {("maml", name): look(1, maps=names, saliency=None) for name in ("isi", "isi + rotate", "isi + reweight")}
    shown = [text.split(" 0 to ")[0] for text in labels(figures.saliency(found))[1:]]
    layers = (0, 4, 8)
    assert shown == [f"map of isi: {layer} in {name}" for name in ("isi", "isi + reweight") for layer in layers]


def test_without_saliency_and_maps_or_without_runs_there_is_no_figure():
    assert figures.saliency({}) is None
    assert figures.saliency({("maml", "plain"): look(saliency=None)}) is None


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_zero_and_non_finite_saliency_can_be_drawn(tmp_path, channels):
    nothing = np.zeros((3, channels, 8, 8), np.float32)
    maps = {"zero": np.zeros((3, 1, 1), np.float32), "nan": np.full((3, 2, 2), np.nan, np.float32)}
    own = {("maml", "plain"): look(channels=channels, saliency=nothing, maps=maps)}
    own["fomaml", "b"] = look(channels=channels, saliency=np.full_like(nothing, np.nan))
    figure = figures.saliency(own)
    first = [path.read_bytes() for path in figures.save(figure, tmp_path / "saliency")]
    assert first == [path.read_bytes() for path in figures.save(figures.saliency(own), tmp_path / "saliency")]


def test_scaled_magnitude_is_the_largest_magnitude_of_the_channels_over_its_99th_percentile():
    saliency = np.zeros((2, 10, 20))
    saliency[0, 0, :4] = [1, -2, 4, 400]
    saliency[1, 0, 1] = 3
    magnitude = np.abs(saliency).max(0)
    found = scaled_magnitude(saliency)
    assert found.max() == 1
    assert found[0, 1] == pytest.approx(min(1, 3 / np.percentile(magnitude, 99)))
    assert scaled_magnitude(saliency * 1e-12) == pytest.approx(found)
    one = np.zeros((1, 20, 20))
    one[0, 3, 3] = 5.0  # less than a hundredth of the pixels
    assert scaled_magnitude(one)[3, 3] == 1


def test_each_cell_of_a_coarse_map_covers_its_block_of_pixels():
    heat = np.array([[0.0, 1.0], [0.5, 0.25]])
    drawn = overlay(np.zeros((6, 6)), heat, 0.65)
    assert drawn.shape == (6, 6, 3)
    for row in range(2):
        for column in range(2):
            cell = drawn[3 * row : 3 * row + 3, 3 * column : 3 * column + 3].reshape(-1, 3)
            assert (cell == cell[0]).all()
    assert drawn[0, 5].sum() > drawn[5, 0].sum() > drawn[5, 5].sum() > drawn[0, 0].sum()


def test_the_image_is_visible_below_the_largest_heat():
    bright, dark = (overlay(np.full((1, 1), value), np.ones((1, 1)), 0.65) for value in (1.0, 0.0))
    assert (bright - dark > 0.2).all()
    assert brightness(np.full((3, 1, 1), -1.0))[0, 0] == 0


@pytest.mark.slow
def test_the_report_embeds_the_images_of_the_saliency_figure_with_a_caveat(tmp_path):
    records = comparison(["plain", "isi"], seeds=1, steps=1)
    for record in records:
        if record["event"] == "result":
            run = Run(record["learner"], record["homogenizers"], record["seed"])
            run_dir(tmp_path, run).path.mkdir(parents=True)
            look(1, channels=3, maps=["isi: 0"]).write(run_dir(tmp_path, run).path)
    _, page = report(tmp_path, records)
    assert (tmp_path / "figures" / "saliency.svg").exists()
    assert "image" in page.tags
    assert "img" not in page.tags
    assert all(text.startswith(("#", "data:image/png;base64,")) for text in page.references)
    assert len(page.ids) == len(set(page.ids))
    assert "no evidence of better scores" in page.text
    assert (tmp_path / "report.html").stat().st_size < 1_000_000

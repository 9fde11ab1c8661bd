"""The saliency figure: methods and maps that are drawn, those that are named as left out, any size of picture."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from gradhomog.experiments.report import figures
from gradhomog.experiments.report.figures.saliency import METHODS, grey, over, strength
from gradhomog.experiments.results.comparison_dir import run_dir
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.results.saliency_maps import SaliencyMaps
from tests.experiments.report.test_page import report
from tests.experiments.synthetic_records import comparison


def look(seed=0, channels=1, maps=(), attached=False, **more):
    same, own = np.random.default_rng(0), np.random.default_rng(seed)
    shape = (3, channels, 8, 8)
    found = {
        "images": same.uniform(-1, 1, shape).astype(np.float32),
        "domains": ("glyphs:georgian", "cub", "<script>"),
        "probabilities": own.uniform(size=3).astype(np.float32),
        "saliency": own.normal(size=shape).astype(np.float32),
        "maps": {name: own.uniform(size=(3, 4, 4)).astype(np.float32) for name in maps},
        "attached": attached,
    }
    return SaliencyMaps(**(found | more))


def labels(figure):
    """Of the rows, with line breaks as spaces."""
    return [" ".join(axes.get_ylabel().split()) for axes in figure.axes[::3]]


def of_methods(count, **more):
    return {("maml", f"m{number}"): look(number, **more) for number in range(count)}


def test_all_methods_are_drawn_as_long_as_there_is_room():
    found = {("maml", "plain"): look(), **of_methods(METHODS - 1)}
    shown = labels(figures.saliency(found))
    assert shown == ["image", "saliency: plain", *(f"saliency: m{number}" for number in range(METHODS - 1))]
    assert figures.saliency_omissions(found, list(found)) == []


def test_with_little_room_plain_and_methods_that_act_in_the_encoder_come_first():
    found = of_methods(METHODS + 1)
    last = ("maml", f"m{METHODS}")
    found[last] = look(9, maps=["isi: 0", "isi: 4"])
    found["maml", "hooked"] = look(10, attached=True)
    found["maml", "plain"] = look()
    shown = labels(figures.saliency(found))[1:]
    drawn = [*(f"m{number}" for number in range(METHODS - 3)), last[1], "hooked", "plain"]
    assert shown[:METHODS] == [f"saliency: {name}" for name in drawn]
    assert [text.split(" 0 to ")[0] for text in shown[METHODS:]] == ["map of isi: 0", "map of isi: 4"]
    omitted = ", ".join(f"m{number}" for number in range(METHODS - 3, METHODS))
    text = f"Without saliency: {omitted} (the figure has rows for {METHODS} methods)."
    assert figures.saliency_omissions(found, list(found)) == [text]


def test_every_method_that_is_left_out_is_named_with_the_reason():
    found = {("maml", name): look() for name in ("plain", "a", "b", "c")}
    found["maml", "a"] = look(saliency=None)
    found["maml", "b"] = look(images=np.zeros((2, 1, 8, 8), np.float32))
    assert figures.saliency_omissions(found, [*found, ("maml", "mgda")]) == [
        "Without saliency: a (its outputs are not differentiable w.r.t. the images).",
        "Without saliency: b (its run used other test images).",
        "Without saliency: mgda (no saliency was saved by its runs).",
    ]


def test_of_many_maps_some_are_shown_of_the_first_method_and_the_last():
    names = [f"isi: {layer}" for layer in range(9)]
    found = {("maml", name): look(1, maps=names, saliency=None) for name in ("isi", "isi + rotate", "isi + reweight")}
    shown = [text.split(" 0 to ")[0] for text in labels(figures.saliency(found))[1:]]
    layers = (0, 4, 8)
    remark = "Without maps: isi + rotate (those of the first and the last method with maps are drawn)."
    assert remark in figures.saliency_omissions(found, list(found))
    assert shown == [f"map of isi: {layer} in {name}" for name in ("isi", "isi + reweight") for layer in layers]


def test_without_saliency_and_maps_or_without_runs_there_is_no_figure():
    assert figures.saliency({}) is None
    assert figures.saliency({("maml", "plain"): look(saliency=None)}) is None


def test_a_run_that_looked_at_other_images_is_left_out():
    found = {("maml", "plain"): look(), ("maml", "b"): look(images=np.zeros((2, 1, 8, 8), np.float32))}
    assert labels(figures.saliency(found)) == ["image", "saliency: plain"]


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_and_what_is_not_finite_can_be_drawn(tmp_path, channels):
    nothing = np.zeros((3, channels, 8, 8), np.float32)
    maps = {"zero": np.zeros((3, 1, 1), np.float32), "nan": np.full((3, 2, 2), np.nan, np.float32)}
    own = {("maml", "plain"): look(channels=channels, saliency=nothing, maps=maps)}
    own["fomaml", "b"] = look(channels=channels, saliency=np.full_like(nothing, np.nan))
    figure = figures.saliency(own)
    first = [path.read_bytes() for path in figures.save(figure, tmp_path / "saliency")]
    assert first == [path.read_bytes() for path in figures.save(figures.saliency(own), tmp_path / "saliency")]


def test_strength_is_the_largest_magnitude_of_the_channels_over_its_99th_percentile():
    saliency = np.zeros((2, 10, 20))
    saliency[0, 0, :4] = [1, -2, 4, 400]
    saliency[1, 0, 1] = 3
    magnitude = np.abs(saliency).max(0)
    found = strength(saliency)
    assert found.max() == 1
    assert found[0, 1] == pytest.approx(min(1, 3 / np.percentile(magnitude, 99)))
    assert strength(saliency * 1e-12) == pytest.approx(found)
    one = np.zeros((1, 20, 20))
    one[0, 3, 3] = 5.0  # less than a hundredth of the pixels
    assert strength(one)[3, 3] == 1


def test_a_coarse_map_covers_the_pixels_that_its_cells_stand_for():
    heat = np.array([[0.0, 1.0], [0.5, 0.25]])
    drawn = over(np.zeros((6, 6)), heat, 0.65)
    assert drawn.shape == (6, 6, 3)
    for row in range(2):
        for column in range(2):
            cell = drawn[3 * row : 3 * row + 3, 3 * column : 3 * column + 3].reshape(-1, 3)
            assert (cell == cell[0]).all()
    assert drawn[0, 5].sum() > drawn[5, 0].sum() > drawn[5, 5].sum() > drawn[0, 0].sum()


def test_the_picture_is_seen_through_the_hottest_cell():
    bright, dark = (over(np.full((1, 1), value), np.ones((1, 1)), 0.65) for value in (1.0, 0.0))
    assert (bright - dark > 0.2).all()
    assert grey(np.full((3, 1, 1), -1.0))[0, 0] == 0


@pytest.mark.slow
def test_the_report_shows_looks_embeds_their_pixels_and_says_what_they_do_not_show(tmp_path):
    records = comparison(["plain", "isi"], seeds=1, steps=1)
    for record in records:
        if record["event"] == "result":
            run = Run(record["learner"], record["homogenizers"], record["seed"])
            look(1, channels=3, maps=["isi: 0"]).write(run_dir(tmp_path, run).path)
    _, page = report(tmp_path, records)
    assert (tmp_path / "figures" / "saliency.svg").exists()
    assert "image" in page.tags
    assert "img" not in page.tags
    assert all(text.startswith(("#", "data:image/png;base64,")) for text in page.references)
    assert len(page.ids) == len(set(page.ids))
    assert "no evidence of better scores" in page.text
    assert (tmp_path / "report.html").stat().st_size < 1_000_000

"""Figures: the drawn numbers are those of the records, files are reproducible, and matplotlib's state is unchanged."""

import math
import sys

import numpy as np
import pytest
from scipy import stats

from gradhomog.experiments.analysis.summary import summarize
from gradhomog.experiments.analysis.training_records import average, mean_cosine, norm_ratio, relative_distance
from gradhomog.experiments.report.figures import curves, saliency, scores, style
from gradhomog.experiments.report.figures.curves import method_stages
from gradhomog.experiments.report.figures.saliency import MAX_METHODS
from gradhomog.experiments.report.page import write_report
from gradhomog.experiments.results.comparison_dir import run_dir
from gradhomog.experiments.runs import Run
from tests.experiments.report.test_page import report
from tests.experiments.results.test_artifacts import example_maps
from tests.experiments.run_helpers import write_comparison
from tests.experiments.synthetic_records import METHODS, comparison, result, stage, with_start


def draw(records):
    summary = summarize(records)
    return {
        "scores": scores.scores(summary),
        "conflict": curves.conflict(records),
        "stages": curves.stages(records),
        "weights": curves.weights(records),
        "validation": curves.validation(records, summary),
    }


def test_figures_without_enough_data_are_omitted():
    records = with_start([result("plain", 0, [0.5, 0.7])])
    assert [name for name, figure in draw(records).items() if figure is not None] == ["scores"]


def test_a_method_that_keeps_the_plain_mean_has_no_panel_of_weights():
    figure = curves.weights(comparison(METHODS[:3], seeds=1, steps=3))
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()] == ["static (tuned)", "pcgrad"]
    assert curves.weights(comparison(["plain"], seeds=1, steps=3)) is None
    one_domain = comparison(METHODS[:3], seeds=1, train=["glyphs:latin"], steps=3)
    assert curves.weights(one_domain) is None  # its tasks are interchangeable


def test_points_are_at_the_means_of_the_table():
    summary = summarize(comparison(METHODS[:3]))
    left, right = scores.scores(summary).axes
    drawn = [container.lines[0].get_xdata()[0] for container in left.containers]
    assert drawn == pytest.approx([100 * row.score.mean for row in summary.rows])
    drawn = [container.lines[0].get_xdata()[0] for container in right.containers]
    assert drawn == pytest.approx([100 * row.to_plain.difference.mean for row in summary.rows[1:]])


def test_a_score_that_is_not_finite_is_named_in_the_figure(tmp_path):
    records = with_start([result("plain", 0, [0.5, 0.7]), result("m", 0, [None, 0.7])])
    figure = scores.scores(summarize(records))
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["not finite", "not finite"]
    style.save(figure, tmp_path / "scores")


@pytest.mark.slow
def test_steps_with_dropped_tasks_or_without_numbers_are_drawn():
    records = comparison(["plain", METHODS[-1]], seeds=1, steps=6)
    steps = [record for record in records if record["event"] == "step"]
    steps[1] |= {"weights": [1.0], "tasks": [2]}
    for record in steps[2:4]:
        nothing = {"norms": [None] * 4, "cosines": [[None] * 4] * 4}
        record |= {**nothing, "weights": [None] * 4, "stages": [{"name": "m", **nothing} for _ in record["stages"]]}
        record["measured"] = {"rotate": {"angle": [None] * 4, "energy": None}}
    for figure in draw(records).values():
        figure.draw_without_rendering()


def test_drawing_does_not_change_the_users_matplotlib_settings(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"font.size": 23.0, "svg.hashsalt": "theirs"}):
        before = dict(matplotlib.rcParams)
        figure = scores.scores(summarize(comparison(METHODS[:2])))
        style.save(figure, tmp_path / "scores")
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].xaxis.label.get_fontsize() < 10


def test_without_matplotlib_the_report_has_a_table_and_a_message_names_the_extra(tmp_path, monkeypatch, capsys):
    write_comparison(tmp_path, comparison(METHODS[:2]))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert len(write_report(tmp_path).rows) == 2
    assert "<table" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "summary.csv").exists()
    assert "pip install 'gradhomog[plot]'" in capsys.readouterr().err


def test_the_mean_cosine_leaves_out_the_diagonal_and_zero_rows():
    cosines = [[1, 0.5, None], [0.5, 1, None], [None, None, None]]
    assert mean_cosine({"cosines": cosines}) == 0.5
    assert math.isnan(mean_cosine({"cosines": [[1.0]]}))


def test_a_row_with_a_norm_below_rounding_error_is_zero():
    assert norm_ratio({"norms": [2.0, 3e-8, 1.0]}) == 2


def test_the_band_of_a_mean_is_its_confidence_interval():
    curve = average([{1: 1.0, 2: 2.0}, {1: 3.0, 2: math.nan}], interval=True)
    low, high = stats.t.interval(0.95, 1, 2.0, 1.0)
    assert curve[1] == pytest.approx((2.0, low, high))
    assert curve[2][0] == 2.0
    assert math.isnan(curve[2][1])


PIPELINE = "isi + rotate + reweight(beta=1.5)"


def distances(rows):
    return [np.linalg.norm(rows[i] - rows[j]) for i in range(len(rows)) for j in range(i)]


def lines(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
def test_the_distance_is_that_of_the_vectors_over_their_mean_norm(seed, scale):
    rows = np.random.default_rng(seed).normal(size=(4, 9)) * scale
    rows[0] *= seed > 0  # the distance of a row to a row of zeros is its norm
    expected = np.mean(distances(rows)) / np.mean(np.linalg.norm(rows, axis=1))
    assert relative_distance(stage("m", rows)) == pytest.approx(expected, rel=1e-9)


def test_a_single_task_or_rows_of_zeros_or_not_finite_have_no_distance():
    assert math.isnan(relative_distance({"norms": [1.0], "cosines": [[1.0]]}))
    assert math.isnan(relative_distance({"norms": [0.0, 0.0], "cosines": [[None, None], [None, None]]}))
    assert math.isnan(relative_distance({"norms": [1.0, None], "cosines": [[1.0, None], [None, None]]}))


def test_stages_are_those_of_probes_if_a_method_has_probes_else_of_steps():
    chains = method_stages(comparison(["plain", "pcgrad", PIPELINE], seeds=2))
    assert [(label, [*by_stage], probed) for (_, label), (by_stage, probed) in chains.items()] == [
        ("pcgrad", ["plain", "pcgrad"], False),
        (PIPELINE, ["plain", "isi", "rotate", "reweight"], True),
    ]
    assert {len(runs) for by_stage, _ in chains.values() for runs in by_stage.values()} == {2}


def test_the_panels_have_the_numbers_of_the_records():
    records = comparison(["plain", "mgda"], seeds=1, steps=3)
    left, middle, right = curves.stages(records).axes
    steps = [record for record in records if record["event"] == "step" and "mgda" in record["run"]]
    assert lines(left, "before").get_xdata().tolist() == [1, 5, 10]
    for record, ratio, distance in zip(
        steps, lines(middle, "after mgda").get_ydata(), lines(right, "after mgda").get_ydata(), strict=True
    ):
        assert ratio == pytest.approx(max(record["stages"][0]["norms"]) / min(record["stages"][0]["norms"]))
        assert distance == pytest.approx(relative_distance(record["stages"][0]))
    # Weights change lengths, not directions.
    assert lines(left, "after mgda").get_ydata() == pytest.approx(lines(left, "before").get_ydata())


def labels(figure):
    """The labels of the rows, with spaces instead of line breaks."""
    return [" ".join(axes.get_ylabel().split()) for axes in figure.axes[::3]]


def of_methods(count, **more):
    return {("maml", f"m{number}"): example_maps(number, **more) for number in range(count)}


def test_all_methods_are_drawn_up_to_the_maximum():
    found = {("maml", "plain"): example_maps(), ("maml", "x"): example_maps(saliency=None), **of_methods(MAX_METHODS)}
    shown = labels(saliency.saliency(found))
    assert shown == ["image", "saliency: plain", *(f"saliency: m{number}" for number in range(MAX_METHODS - 1))]


def test_only_some_maps_of_the_first_and_the_last_method_are_drawn():
    names = [f"isi: {layer}" for layer in range(9)]
    found = {
        ("maml", name): example_maps(1, maps=names, saliency=None) for name in ("isi", "isi + rotate", "isi + reweight")
    }
    shown = [text.split(" 0 to ")[0] for text in labels(saliency.saliency(found))[1:]]
    layers = (0, 4, 8)
    assert shown == [f"map of isi: {layer} in {name}" for name in ("isi", "isi + reweight") for layer in layers]


def test_without_saliency_and_maps_or_without_runs_there_is_no_figure():
    assert saliency.saliency({}) is None
    assert saliency.saliency({("maml", "plain"): example_maps(saliency=None)}) is None


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_zero_and_non_finite_saliency_can_be_drawn(tmp_path, channels):
    nothing = np.zeros((3, channels, 8, 8), np.float32)
    maps = {"zero": np.zeros((3, 1, 1), np.float32), "nan": np.full((3, 2, 2), np.nan, np.float32)}
    own = {("maml", "plain"): example_maps(channels=channels, saliency=nothing, maps=maps)}
    own["fomaml", "b"] = example_maps(channels=channels, saliency=np.full_like(nothing, np.nan))
    figure = saliency.saliency(own)
    first = [path.read_bytes() for path in style.save(figure, tmp_path / "saliency")]
    assert first == [path.read_bytes() for path in style.save(saliency.saliency(own), tmp_path / "saliency")]


@pytest.mark.slow
def test_the_report_embeds_the_images_of_the_saliency_figure_with_a_caveat(tmp_path):
    records = comparison(["plain", "isi"], seeds=1, steps=1)
    for record in records:
        if record["event"] == "result":
            run = Run(record["learner"], record["homogenizers"], record["seed"])
            run_dir(tmp_path, run).path.mkdir(parents=True)
            example_maps(1, channels=3, maps=["isi: 0"]).write(run_dir(tmp_path, run).path)
    _, page = report(tmp_path, records)
    assert (tmp_path / "figures" / "saliency.svg").exists()
    assert "image" in page.tags
    assert "img" not in page.tags
    assert all(text.startswith(("#", "data:image/png;base64,")) for text in page.references)
    assert len(page.ids) == len(set(page.ids))
    assert "no evidence of better scores" in page.text
    assert (tmp_path / "report.html").stat().st_size < 1_000_000

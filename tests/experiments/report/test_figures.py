"""Figures: the drawn numbers are those of the records, files are reproducible, and matplotlib's state is unchanged."""

from __future__ import annotations

import math
import sys

import pytest
from scipy import stats

pytest.importorskip("matplotlib")

from gradhomog.errors import GradhomogError
from gradhomog.experiments.analysis.summary import summarize
from gradhomog.experiments.report import figures
from gradhomog.experiments.report.figures import style
from gradhomog.experiments.report.figures.curves import (
    average,
    mean_cosine,
    norm_ratio,
    running_mean,
)
from gradhomog.experiments.report.page import write_report
from tests.experiments.run_helpers import write_comparison
from tests.experiments.synthetic_records import METHODS, comparison, result, start


def draw(records):
    summary = summarize(records)
    return {
        "scores": figures.scores(summary),
        "conflict": figures.conflict(records),
        "stages": figures.stages(records),
        "weights": figures.weights(records),
        "validation": figures.validation(records, summary),
    }


@pytest.mark.slow
def test_every_figure_is_written_as_svg_and_png_with_the_same_bytes_twice(tmp_path):
    records = comparison(["plain", METHODS[-1]], seeds=2, steps=4)
    redrawn = draw(records)
    for name, figure in draw(records).items():
        first = [path.read_bytes() for path in figures.save(figure, tmp_path / name)]
        again = [path.read_bytes() for path in figures.save(redrawn[name], tmp_path / "again" / name)]
        assert first == again
        assert first[0].startswith(b"<?xml")
        assert b"<dc:date>" not in first[0]
        assert first[1].startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_two_learners_with_one_training_domain_can_be_drawn(seeds):
    records = comparison(
        ["plain", METHODS[-1]], seeds, ["maml", "fomaml"], train=["glyphs:latin"], test=list("abcde"), steps=4
    )
    drawn = draw(records)
    assert drawn.pop("weights") is None  # the tasks of one domain are interchangeable
    for figure in drawn.values():
        figure.draw_without_rendering()  # a warning that something does not fit is an error


def test_without_results_there_are_no_figures():
    assert set(draw([start()]).values()) == {None}


def test_figures_without_enough_data_are_omitted():
    records = [start(), result("plain", 0, [0.5, 0.7])]
    assert [name for name, figure in draw(records).items() if figure is not None] == ["scores"]


def test_a_method_that_keeps_the_plain_mean_has_no_panel_of_weights():
    figure = figures.weights(comparison(METHODS[:3], seeds=1, steps=3))
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()] == ["static (tuned)", "pcgrad"]
    assert figures.weights(comparison(["plain"], seeds=1, steps=3)) is None


@pytest.mark.slow
def test_methods_that_replace_rows_have_no_weights_and_are_drawn_elsewhere(tmp_path):
    records = [{**r, "weights": None} if r["event"] == "step" else r for r in comparison(METHODS[:2], seeds=1, steps=3)]
    found = draw(records)
    assert found["weights"] is None
    assert found["conflict"] is not None


def test_points_are_at_the_means_of_the_table():
    summary = summarize(comparison(METHODS[:3]))
    left, right = figures.scores(summary).axes
    drawn = [container.lines[0].get_xdata()[0] for container in left.containers]
    assert drawn == pytest.approx([100 * row.score.mean for row in summary.rows])
    drawn = [container.lines[0].get_xdata()[0] for container in right.containers]
    assert drawn == pytest.approx([100 * row.to_plain.difference.mean for row in summary.rows[1:]])


def test_a_score_that_is_not_finite_is_named_in_the_figure(tmp_path):
    records = [result("plain", 0, [0.5, 0.7]), result("m", 0, [None, 0.7])]
    figure = figures.scores(summarize(records))
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["not finite", "not finite"]
    figures.save(figure, tmp_path / "scores")


@pytest.mark.slow
@pytest.mark.parametrize("label", ["<script>", "a & b", "$x$ and $\\frac$", "Ünïcode 漢", "a" * 90])
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_any_label_can_be_drawn(tmp_path, label):
    records = [result("plain", 0, [0.5, 0.7]), result(label, 0, [0.6, 0.7])]
    figures.save(figures.scores(summarize(records)), tmp_path / "scores")


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
        figure = figures.scores(summarize(comparison(METHODS[:2])))
        figures.save(figure, tmp_path / "scores")
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].xaxis.label.get_fontsize() < 10


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for function in (figures.require_matplotlib, lambda: figures.scores(summarize(comparison(METHODS[:2])))):
        with pytest.raises(GradhomogError, match=r"pip install 'gradhomog\[plot\]'"):
            function()


def test_without_matplotlib_the_report_has_a_table_and_a_message_names_the_extra(tmp_path, monkeypatch, capsys):
    write_comparison(tmp_path, comparison(METHODS[:2]))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert len(write_report(tmp_path).rows) == 2
    assert "<table" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "summary.csv").exists()
    assert "pip install 'gradhomog[plot]'" in capsys.readouterr().err


def test_many_methods_differ_in_colour_or_dashes():
    looks = style.colors([str(number) for number in range(20)])
    assert len(set(looks.values())) == 21


def test_the_mean_cosine_leaves_out_the_diagonal_and_zero_rows():
    cosines = [[1, 0.5, None], [0.5, 1, None], [None, None, None]]
    assert mean_cosine({"cosines": cosines}) == 0.5
    assert math.isnan(mean_cosine({"cosines": [[1.0]]}))


def test_the_norm_ratio_leaves_out_zero_rows():
    assert norm_ratio({"norms": [2.0, 0.0, 8.0, None]}) == 4
    assert math.isnan(norm_ratio({"norms": [2.0, 0.0]}))


def test_a_row_with_a_norm_below_rounding_error_is_zero():
    assert norm_ratio({"norms": [2.0, 3e-8, 1.0]}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_one_or_two_steps_has_markers(steps):
    for name, figure in draw(comparison([*METHODS[:2], METHODS[-1]], seeds=1, steps=steps)).items():
        if name not in ("scores", "domains"):
            drawn = [line for axes in figure.axes for line in axes.lines if line.get_color() != style.GUIDE_COLOR]
            assert drawn
            assert all(line.get_marker() == "o" for line in drawn)


def test_a_method_that_coincides_with_plain_is_drawn_over_it():
    records = comparison(["plain", "static"], seeds=1)
    lines = {line.get_label(): line for line in figures.conflict(records).axes[0].lines}
    assert lines["static"].get_zorder() > lines["plain"].get_zorder()
    assert lines["static"].get_linewidth() < lines["plain"].get_linewidth()


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ("isi + rotate + reweight", ["isi + rotate +", "reweight"]),
        ('reweight(solver="fixed_point", beta=1.5)', ["reweight(solver=", '"fixed_point",', "beta=1.5)"]),
        ("glyphs:geometric", ["glyphs:", "geometric"]),
        ("a" * 40, ["a" * 16, "a" * 16, "a" * 8]),
        ("", [""]),
    ],
)
def test_labels_are_wrapped_between_words(label, lines):
    assert style.wrap_label(label, 16 if label != "glyphs:geometric" else 15).split("\n") == lines


def test_a_running_mean_preserves_straight_lines_and_skips_missing_values():
    assert running_mean([1.0, 2.0, 3.0, 4.0], 3) == [1.5, 2.0, 3.0, 3.5]
    assert running_mean([1.0, math.nan, 3.0], 3) == [1.0, 2.0, 3.0]
    assert running_mean([1.0, 5.0], 1) == [1.0, 5.0]


def test_runs_are_averaged_where_they_have_values():
    curve = average([{1: 1.0, 2: 2.0}, {2: 4.0, 3: math.nan}])
    assert curve.steps == [1, 2, 3]
    assert curve.middle[:2] == [1.0, 3.0]
    assert (curve.low[1], curve.high[1]) == (2.0, 4.0)
    assert math.isnan(curve.middle[2])


def test_the_band_of_a_mean_is_its_confidence_interval():
    curve = average([{1: 1.0, 2: 2.0}, {1: 3.0, 2: math.nan}], interval=True)
    low, high = stats.t.interval(0.95, 1, 2.0, 1.0)
    assert (curve.low[0], curve.high[0]) == pytest.approx((low, high))
    assert curve.middle == [2.0, 2.0]
    assert math.isnan(curve.low[1])


@pytest.mark.slow
def test_a_legend_of_many_methods_or_learners_fits_into_the_figure():
    labels = ["plain", *(f"method number {index} with a name of its own" for index in range(20))]
    many = comparison(labels, 1, ["maml"], steps=2)
    several = comparison(["plain", "pcgrad"], 1, [f"learner{index}(inner_lr=0.1)" for index in range(13)], steps=2)
    for records in (many, several):
        for figure in (figures.validation(records, summarize(records)), figures.conflict(records)):
            figure.draw_without_rendering()
            for legend in figure.legends:
                assert legend.get_window_extent().y0 >= -1

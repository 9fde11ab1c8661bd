"""Reproductions from settings to table and report: numbers, averages, resumption and errors."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gradhomog.cli import main
from gradhomog.errors import ConfigError, PluginRunError, UnknownPluginError
from gradhomog.experiments.analysis.statistics import mean_interval
from gradhomog.experiments.execution.comparison import ComparisonResult
from gradhomog.experiments.reproduce import execute
from gradhomog.experiments.reproduce.comparisons import PlannedComparison, PlannedRow, Settings, planned_comparisons
from gradhomog.experiments.reproduce.execute import Reproduction, reproduce
from gradhomog.experiments.reproduce.paper_scores import PaperScore, _averages, collect
from gradhomog.experiments.reproduce.report import text_table, write_page
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog_data.benchmarks import BENCHMARKS
from tests.experiments.reproduce.conftest import NAMES, TINY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_pictures")]


@pytest.fixture(scope="module")
def settings(domains: dict[str, str]) -> Settings:
    return Settings(
        domains, learners=["MAML"], targets=["cub", "cars"], shots=[1], others=False, overrides=[*TINY, "seeds=2"]
    )


@pytest.fixture(scope="module")
def finished(settings: Settings, tmp_path_factory: pytest.TempPathFactory, without_pictures: None) -> Reproduction:
    return reproduce("strong", settings, tmp_path_factory.mktemp("out") / "strong")


def content_of(outcome: Reproduction) -> dict[str, Any]:
    content = outcome.results.to_json(outcome.paper)
    return {**content, "cells": [{**cell, "step_seconds": None} for cell in content["cells"]]}


def text_of(outcome: Reproduction) -> str:
    return text_table(outcome.paper, outcome.results, outcome.description).text()


def result(folder: Path, part: str, learner: str, seed: int) -> dict:
    for path in (folder / part / "runs").glob("*/result.json"):
        record = json.loads(path.read_text())
        if (record["homogenizers"], record["seed"]) == (learner, seed):
            return record
    raise AssertionError(f"no result of {learner} with seed {seed}")


def test_cells_are_the_means_of_the_results(finished) -> None:
    cell = next(cell for cell in finished.results.rows if (cell.column, cell.row) == ("cub 1-shot", "MAML"))
    scores = [result(finished.folder, "cub-1-shot-maml", "none", seed)["scores"] for seed in (0, 1)]
    means = np.mean(scores, axis=1)
    assert cell.ours.mean == pytest.approx(means.mean())
    assert cell.ours.half_width == pytest.approx(stats.t.ppf(0.975, 1) * stats.sem(means))
    expected = np.mean([stats.t.ppf(0.975, len(row) - 1) * stats.sem(row) for row in scores])
    assert cell.half_width_episodes == pytest.approx(expected)
    assert cell.published == [40.66]
    assert cell.excess is None
    assert replace(cell, is_comparable=True).excess == pytest.approx(means.mean() - 0.4066)


def test_differences_are_paired_by_seed_also_those_of_averages(finished) -> None:
    cells = {(cell.column, cell.row): cell for cell in finished.results.rows}
    differences = []
    for column in ("cub 1-shot", "cars 1-shot"):
        plain, other = cells[column, "MAML"], cells[column, "MAML, pcgrad"]
        by_seed = np.array([other.seed_scores[seed] - plain.seed_scores[seed] for seed in (0, 1)])
        assert other.to_plain is not None
        assert other.to_plain.mean == pytest.approx(by_seed.mean())
        differences.append(by_seed)
    average = cells["average of 2, 1-shot", "MAML, pcgrad"]
    mean = np.mean(differences, axis=0)
    assert average.to_plain is not None
    assert average.to_plain.mean == pytest.approx(mean.mean())
    assert average.to_plain.half_width == pytest.approx(stats.t.ppf(0.975, 1) * stats.sem(mean), abs=1e-12)
    assert cells["average of 2, 1-shot", "MAML"].to_plain is None


def test_the_table_has_every_row_and_column_and_the_notes_state_scale_and_data(finished) -> None:
    text = text_of(finished)
    for word in ("MAML-RotoGBML", "MAML, static (tuned)", "cars 1-shot", "39.19", "Scale smoke", "0 of 9 benchmarks"):
        assert word in text
    assert "changed by network.size=16" in text
    content = content_of(finished)
    assert [cell["seeds"] for cell in content["cells"]] == [[0, 1]] * 12


def test_numbers_are_compared_with_the_papers_only_if_all_data_of_the_column_are_complete(
    finished: Reproduction, settings: Settings
) -> None:
    planned = planned_comparisons("strong", settings)
    for complete in (set(NAMES), set(NAMES) - {"isic"}, {"cub", "cars"}):
        results = collect(finished.paper, "strong", planned, finished.folder, complete)
        compared = {cell.row for cell in results.rows if cell.excess is not None}
        assert compared == ({"MAML", "MAML-RotoGBML"} if complete == set(NAMES) else set())
    text = text_of(finished)
    page = (finished.folder / "report.html").read_text()
    for output in (text, page):
        assert "– †" in output
        assert "†: no comparison with the paper" in output
        assert "cars (cars-16.npz: 20 of 196 classes; 140 of 8,144 images)" in output
    assert "cars-16.npz; 20 of 196 classes" in page


def test_weak_columns_need_only_their_own_benchmark(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(BENCHMARKS["cub"], classes=20, images=140, rule="novel")  # as if the small data were complete
    monkeypatch.setitem(BENCHMARKS, "cub", small)
    outcome = reproduce("weak", replace(settings, targets=["cub"]), tmp_path / "out")
    compared = {cell.row for cell in outcome.results.rows if cell.excess is not None}
    assert compared == {"MAML", "MAML-RotoGBML"}
    text = text_of(outcome)
    assert "1 of 9 benchmarks present and complete; not complete: miniimagenet" in text
    assert "†" not in text


def test_the_page_is_self_contained_and_links_the_comparisons(finished) -> None:
    page = write_page(finished.paper, finished.results, finished.description, finished.folder).read_text()
    assert not re.search(r'(?:src|href)="(?!#|cub|cars)', page)
    for part in ("cub-1-shot-maml", "cars-1-shot-maml"):
        assert f'href="{part}/report.html"' in page
        assert (finished.folder / part / "report.html").exists()
    assert "<svg" in page


def test_an_interrupted_reproduction_gives_the_same_table(finished, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    shutil.rmtree(folder / "cars-1-shot-maml")
    for path in sorted((folder / "cub-1-shot-maml" / "runs").glob("*-s1")):
        shutil.rmtree(path)
    resumed = reproduce("strong", settings, folder, resume=True)
    assert content_of(resumed) == content_of(finished)


def message_of(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as error:
        call()
    return str(error.value)


def _moved(settings: Settings, folder: Path) -> Settings:
    """The same settings with copies of the data in another folder."""
    folder.mkdir()
    return replace(settings, domains={name: shutil.copy(text, folder) for name, text in settings.domains.items()})


def test_data_may_be_moved_between_start_and_resumption(
    finished: Reproduction, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "compare", lambda *arguments, **options: pytest.fail("computed again"))
    resumed = reproduce("strong", _moved(settings, tmp_path / "moved"), finished.folder, resume=True)
    assert content_of(resumed) == content_of(finished)


def test_changed_data_are_refused_with_the_name_of_the_domain_before_any_training(
    finished: Reproduction, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a domain that is only trained on, and if another comparison has to be computed."""
    monkeypatch.setattr(execute, "compare", lambda *arguments, **options: pytest.fail("computed"))
    folder = shutil.copytree(finished.folder, tmp_path / "copy")
    shutil.rmtree(folder / "cub-1-shot-maml")
    moved = _moved(settings, tmp_path / "moved")
    path = Path(moved.domains["isic"])
    path.chmod(0o644)
    content = dict(np.load(path))
    content["images"][0, 0, 0, 0] ^= 1
    np.savez(path, **content)
    message = message_of(lambda: reproduce("strong", moved, folder, resume=True))
    assert f"{folder / 'cars-1-shot-maml'} has results of other data: the content of {path}" in message


def test_failing_runs_and_comparisons_are_missing_in_the_table_and_the_others_are_computed(
    nine_benchmarks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = execute.compare

    def fail_first(config: Config, folder: Path, *arguments: Any, **options: Any) -> ComparisonResult:
        if "cub" in folder.name:
            raise PluginRunError("no memory")
        outcome = compare(config, folder, *arguments, **options)
        return replace(outcome, failures={"a run": "not finite"})

    monkeypatch.setattr(execute, "compare", fail_first)
    overrides = [word for override in TINY for word in ("--set", override)]
    command = [
        "reproduce", "weak", "--data", str(nine_benchmarks), "--learner", "fomaml", "--target", "cub", "--target",
        "miniimagenet", "--without-others", "--jobs", "1", "--json", "--out",
        str(tmp_path / "out"), *overrides,
    ]  # fmt: skip
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "cub-1-shot-fomaml failed: no memory" in printed.err
    assert "miniimagenet-1-shot-fomaml: a run failed: not finite" in printed.err
    content = json.loads(printed.out, parse_constant=lambda name: pytest.fail(f"JSON contains {name}"))
    assert {cell["column"] for cell in content["cells"]} == {"miniimagenet 1-shot"}
    assert "cub 1-shot, fomaml" in content["missing"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "paired by test episode" in page
    assert "cub 1-shot, fomaml; cub 1-shot, fomaml-RotoGBML" in page


def test_an_unknown_learner_raises_before_any_training(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UnknownPluginError, match="mamll"):
        reproduce("strong", replace(settings, learners=["MAML", "mamll"]), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*/runs"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tables"], r"unknown experiment 'tables'\. It must be one of ablation, .*weak, or FILE"),
        (["strong", "--scale", "smal"], r"unknown scale 'smal'; .*Did you mean 'small'\?"),
        (["strong"], "Pass the folder of the data by --data"),
        (["strong", "--data", "missing"], "--data must be an existing folder"),
        (["pinn", "--data", "x", "--shots", "1"], "`pinn` needs no data; remove --data"),
    ],
)
def test_invalid_arguments_have_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def of_column(column: str, row: str, *scores: float) -> PaperScore:
    return PaperScore(column, row, "strong", "accuracy", mean_interval(scores), dict(enumerate(scores)))


BLOCK = ("cub", "cars", "places", "plantae")


def test_averages_are_over_columns_with_exactly_this_number_of_shots() -> None:
    results = [of_column(f"{name} 5-shot", "MAML", 0.5, 0.6) for name in BLOCK]
    results += [of_column(f"{name} 15-shot", "MAML", 0.9, 0.9) for name in BLOCK]
    published = {"MAML": {"average natural 5-shot": [49.82]}}
    rows = _planned("MAML")
    found = {each.column: each for each in _averages({"natural": BLOCK, "": ()}, published, results, rows)}
    assert found["average natural 5-shot"].ours.mean == 0.55
    assert found["average natural 5-shot"].published == [49.82]
    assert found["average natural 15-shot"].ours.mean == 0.9
    assert found["average natural 15-shot"].published is None
    assert found["average of 4, 5-shot"].seed_scores == {0: 0.55 - 0.05, 1: 0.6}


def test_rows_that_lack_a_column_or_a_seed_are_averaged_over_common_ones_or_omitted() -> None:
    results = [of_column(f"{name} 1-shot", "MAML", 0.5, 0.6) for name in BLOCK[:3]]
    results += [of_column(f"{BLOCK[3]} 1-shot", "MAML", 0.7), of_column("cub 1-shot", "ANIL", 0.4)]
    found = _averages({"natural": BLOCK}, {}, results, _planned("MAML", "ANIL"))
    assert [(each.column, each.row, each.seed_scores) for each in found] == [
        ("average natural 1-shot", "MAML", {0: (3 * 0.5 + 0.7) / 4})
    ]


def _planned(*titles: str) -> list[PlannedComparison]:
    rows = tuple(PlannedRow(title, "maml", "none", title) for title in titles)
    return [PlannedComparison("one", "cub 1-shot", "strong", load(), rows, frozenset())]

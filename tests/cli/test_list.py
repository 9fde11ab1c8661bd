"""`gradhomog list` prints tiers and summaries, from files that it does not import."""

import json
import subprocess
import sys
from typing import Any

import pytest

from gradhomog.cli import list_, main
from gradhomog.experiments.suite.problems import problems
from gradhomog.experiments.suite.row_files import stored_results
from gradhomog.experiments.suite.scores import Scores
from gradhomog.registry import expression, installed
from tests.plugins.rows import BUILT_IN


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert main(["list", *arguments, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_a_homogenizer_is_listed_with_its_tier_and_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys, "homogenizers")
    assert {rows[name]["tier"] for name in ("auto", "upgrad", "pcgrad")} == {"recommended", "for a need", "catalogue"}
    summaries = {name: installed().load("homogenizers", name)[1].summary for name in BUILT_IN}
    assert {name: rows[name]["summary"] for name in BUILT_IN} == summaries
    assert main(["list", "homogenizers"]) == 0
    assert "catalogue    removes from each gradient" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "summary"),
    [
        ("raise RuntimeError\nHomogenizerSpec(None, summary='a ' 'constant')\n", "a constant"),
        ("raise RuntimeError\ngradhomog.HomogenizerSpec(None, 'by place')\n", "by place"),
        ("HomogenizerSpec(None, text)\n", ""),
        ("HomogenizerSpec(None, 'one') if True else HomogenizerSpec(None, 'of two')\n", ""),
        ('"""Not closed\n', ""),
    ],
)
def test_a_plugin_of_others_is_described_from_its_source_without_an_import(
    gradhomog_install: Any, capsys: pytest.CaptureFixture[str], source: str, summary: str
) -> None:
    name = gradhomog_install("fake-described", source)
    row = listed(capsys, "homogenizers")[name]
    assert (row["summary"], row["tier"]) == (summary, "")


def test_listing_imports_no_plugin() -> None:
    code = (
        "import sys; from gradhomog.cli import main; main(['list'])\n"
        "packages = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not packages & {'torch', 'gradhomog_plugins', 'gradhomog_adapters', 'gradhomog_data'}, packages"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_recommended_methods_are_those_that_the_stored_results_of_the_suite_select() -> None:
    scores = Scores(stored_results(), list(problems().values())).scores()
    selected = {
        score.method
        for score in scores
        if score.misscaled <= 0.1 and score.worst_misscaled <= 1 and not score.failures and not score.worse
    }
    recommended = list_.tiers()["recommended"]
    assert set(recommended.values()) == {*selected, "static"}
    assert [expression.parse(text)[0][0] for text in recommended.values()] == list(recommended)


def test_tiers_name_installed_homogenizers_once() -> None:
    tables = list_.tiers()
    names = [*tables["recommended"], *(name for need in tables["for_a_need"].values() for name in need)]
    assert sorted(names) == sorted(set(names))
    assert set(names) <= {info.name for info in installed().list("homogenizers")}

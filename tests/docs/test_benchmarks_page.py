"""The tables of the page of benchmarks are those of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gradhomog_data.benchmarks import BENCHMARKS
from gradhomog_data.benchmarks.catalogue import RULES
from tests.docs.language import ROOT

PAGE = (ROOT / "docs" / "guide" / "benchmarks.md").read_text(encoding="utf-8")

SHORT = {"folders": "folders", "modulo": "modulo 4", "novel": "novel"}


def tables() -> Iterator[list[list[str]]]:
    for block in PAGE.split("\n\n"):
        if block.startswith("| "):
            yield [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]


def table(*header: str) -> dict[str, list[str]]:
    """Rows after the first cell, of the table with this header."""
    (found,) = (rows for rows in tables() if rows[0] == list(header))
    return {row[0].strip("`"): row[1:] for row in found[2:]}


def test_classes_images_rules_and_orders_are_those_of_the_catalogue() -> None:
    header = ("name", "benchmark", "classes: base, val, novel", "images", "split rule", "order of classes")
    assert table(*header) == {
        name: [
            benchmark.title,
            ", ".join(map(str, benchmark.splits.values())),
            "–" if benchmark.images is None else f"{benchmark.images:,}",
            SHORT[benchmark.rule],
            benchmark.order,
        ]
        for name, benchmark in BENCHMARKS.items()
    }


def test_sources_and_terms_are_those_of_the_catalogue() -> None:
    expected = {name: [benchmark.source, benchmark.terms] for name, benchmark in BENCHMARKS.items()}
    assert table("name", "obtained from", "terms") == expected


def test_files_are_those_of_the_catalogue() -> None:
    rows = {name: cells[0].replace("`", "") for name, cells in table("name", "files below the data root").items()}
    assert rows == {name: benchmark.layout for name, benchmark in BENCHMARKS.items()}


@pytest.mark.parametrize("rule", RULES)
def test_split_rules_are_those_of_the_catalogue(rule: str) -> None:
    rows = table("split rule", "classes, numbered from 0")
    assert rows[SHORT[rule]][0].removesuffix(": for meta-test only") == RULES[rule].removeprefix("class i: ")

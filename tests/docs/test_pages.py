"""Examples on pages run, links have targets, and tables agree with the program."""

import argparse
import inspect
import re
import tomllib
import typing
from collections.abc import Iterator

import pytest

from gradhomog import cli, testing
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.experiments.suite.problems import problems
from gradhomog.testing import pytest_plugin
from gradhomog.testing.check_results import MARKS, Outcome
from gradhomog_data.benchmarks import BENCHMARKS, RULES
from tests.docs import pages
from tests.docs.language import ROOT

DOCS = ROOT / "docs"
GENERATED = {  # by the site
    *(
        DOCS / "methods" / f"{name}.md"
        for name in [*pages.built_in("homogenizers"), "_list", "_traits", "_gallery", "_choice", "_certificate"]
    ),
    *(DOCS / "reference" / f"{name}.md" for name in ("python", "learners", "domains", "observers", "checks")),
    *(DOCS / "results" / "suite" / f"{name}.md" for name in ["leaderboard", *problems()]),
}
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page not in GENERATED and page.parent.name != "python"),
]


def blocks(page, language):
    return pages.blocks(page.read_text(encoding="utf-8"), language)


REQUIRED = {"transformers.md": "accelerate"}
"""Packages of frameworks without which the examples of a page cannot run."""
EXAMPLES = [(page, index) for page in PAGES for index in range(len(blocks(page, "python")))]


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(("page", "index"), EXAMPLES, ids=[f"{page.name}-{index}" for page, index in EXAMPLES])
def test_a_python_example_runs_after_those_before_it(page, index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.name in REQUIRED:
        pytest.importorskip(REQUIRED[page.name], reason=f"needs the extra of {page.name}")
    names: dict[str, object] = {"__name__": "example"}
    # An example may use what an earlier one on its page made.
    before = blocks(page, "python")[:index] if page.name == "domains.md" else []
    for source in [*before, blocks(page, "python")[index]]:
        source = re.sub(r"for (step|i) in range\(\d+\)", r"for \1 in range(3)", source)  # fewer steps and tasks
        exec(compile(source, f"{page.name}, example {index + 1}", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_have_targets(page):
    for target in re.findall(r"\]\(([^)#]+)\)", pages.prose(page.read_text(encoding="utf-8"))):
        path = (page.parent / target).resolve()
        if not target.startswith("http") and path not in GENERATED:
            assert path.exists(), target


def test_the_guide_lists_every_key_of_the_run_file_with_its_default():
    (page,) = [page for page in PAGES if page.name == "run-file.md"]
    assert tomllib.loads(blocks(page, "toml")[0]) == Config().to_dict()


def test_the_guide_lists_every_default_that_differs_without_domains():
    (page,) = [page for page in PAGES if page.name == "run-file.md"]
    general, first = (tomllib.loads(block) for block in blocks(page, "toml")[:2])
    assert first == {
        key: {inner: value for inner, value in found.items() if value != general[key][inner]}
        if isinstance(found, dict)
        else found
        for key, found in load().to_dict().items()
        if found != general[key]
    }


@pytest.mark.parametrize("kind", ["homogenizers", "learners"])
def test_the_readme_names_every_built_in(kind):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = pages.built_in(kind)
    assert f"**{len(names)} {kind}**" in text
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_first_two_sh_blocks_of_the_readme_hold_its_commands():
    setup, tests = blocks(ROOT / "README.md", "sh")[:2]
    assert setup.splitlines()[-1] == "gradhomog compare"
    assert "pytest" in tests


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_example_run_files_are_valid(path):
    assert load(path).homogenizers


CHECK_PAGE = pages.text("guide/check.md")


@pytest.mark.parametrize("outcome", typing.get_args(Outcome))
def test_every_outcome_is_explained_beside_its_mark(outcome: str) -> None:
    assert f"| {MARKS.get(outcome, '-')} | {outcome} |" in CHECK_PAGE


def test_every_option_of_the_command_is_on_the_page() -> None:
    [commands] = [action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    command = commands.choices["check"]
    options = {text for action in command._actions for text in action.option_strings if text.startswith("--")}
    assert {option for option in options - {"--help"} if f"{option}" not in CHECK_PAGE} == set()


@pytest.mark.parametrize(
    "name", [name for name in testing.__all__ if not inspect.isclass(getattr(testing, name)) and name != "Outcome"]
)
def test_every_function_of_the_kit_is_on_the_page(name: str) -> None:
    assert name in CHECK_PAGE


@pytest.mark.parametrize("fixture", [name for name in vars(pytest_plugin) if name.startswith("gradhomog_")])
def test_every_fixture_is_on_the_page(fixture: str) -> None:
    assert f"- `{fixture}" in CHECK_PAGE


BENCHMARKS_PAGE = (ROOT / "docs" / "guide" / "benchmarks.md").read_text(encoding="utf-8")

SHORT = {"folders": "folders", "modulo": "modulo 4", "novel": "novel"}


def tables() -> Iterator[list[list[str]]]:
    for block in BENCHMARKS_PAGE.split("\n\n"):
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

"""Examples on pages run, links have targets, and tables agree with the program."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.experiments.suite.problems import problems
from tests.docs import pages

ROOT = Path(__file__).parents[2]
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

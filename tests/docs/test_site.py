"""The site builds without warnings, needs no network, and has a page for each public thing."""

import doctest
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gradhomog
from gradhomog import cli, errors
from gradhomog.testing import checks
from tests.docs import pages

SEARCHES = {
    "missing labels": "guide/complete-loop",
    "gradient accumulation": "guide/complete-loop",
    "mixed precision": "guide/complete-loop",
    "learning-rate schedule": "guide/complete-loop",
    "resume": "guide/complete-loop",
    "memory": "guide/backward",
    "nan": "guide/backward",
    "distributed training": "guide/ranks",
}
"""Words of a search, and the page with the answer."""


class Page(HTMLParser):
    """The links, anchors, loaded files, landmarks, headings and pictures of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.pictures_without_text: list[str] = []
        self.attributes: dict[str, dict[str, str | None]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.attributes.setdefault(tag, values)
        if identity := values.get("id") or values.get("name"):
            self.anchors.add(identity)
        if tag == "a" and (href := values.get("href")):
            self.links.append(href)
        if tag in {"script", "img", "iframe"} and (source := values.get("src")):
            self.loaded.append(source)
        if tag == "link" and values.get("rel") != "canonical" and (href := values.get("href")):
            self.loaded.append(href)
        if tag == "img" and not values.get("alt"):
            self.pictures_without_text.append(values.get("src") or "")


def required(requirement: str) -> dict[str, set[str]]:
    """Return the distributions that an installation of `requirement` brings, with their extras."""
    found: dict[str, set[str]] = {}
    open_ = [Requirement(requirement)]
    while open_:
        wanted = open_.pop()
        name, extras = canonicalize_name(wanted.name), {"", *wanted.extras}
        if name in found and extras <= found[name]:
            continue
        found[name] = extras | found.get(name, set())
        for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
                open_.append(requirement)
    return found


@pytest.fixture
def only_the_extra_docs(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that import only what `pip install '.[docs]'` brings."""
    allowed = required("gradhomog[docs]")
    other = [
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if not any(canonicalize_name(name) in allowed for name in distributions) and not module.startswith("_")
    ]
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({other!r}))\n"  # None: importing it raises ModuleNotFoundError
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    assert "lightning" in other  # a package of another extra
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.slow
def test_the_site_builds_and_is_complete(
    tmp_path: Path, subtests: pytest.Subtests, only_the_extra_docs: dict[str, str]
) -> None:
    pytest.importorskip("sphinx", reason="the site needs the extra `docs`")
    source, site = tmp_path / "docs", tmp_path / "site"
    shutil.copytree(pages.DOCS, source, ignore=shutil.ignore_patterns("_build", "python", "pictures", ".jupyter_cache"))
    for name in ("README.md", "gradhomog", "plugins", "adapters"):  # pages of the site link to files there
        (tmp_path / name).symlink_to(pages.DOCS.parent / name)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees", source, site]
    build = subprocess.run(command, capture_output=True, text=True, check=False, env=only_the_extra_docs)
    assert build.returncode == 0, build.stderr

    text = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}
    parsed = {path: Page(content) for path, content in text.items()}

    with subtests.test("no page loads anything from the network"):
        loaded = {(path.name, link) for path, page in parsed.items() for link in page.loaded if urlsplit(link).netloc}
        assert loaded == set()

    with subtests.test("links within the site have targets"):
        broken = []
        for path, page in parsed.items():
            for link in page.links:
                parts = urlsplit(link)
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                if parts.scheme or parts.netloc:
                    continue
                if not target.exists() or (
                    parts.fragment and target in parsed and unquote(parts.fragment) not in parsed[target].anchors
                ):
                    broken.append((path.name, link))
        assert broken == []

    with subtests.test("every page has a language, a title, one main landmark and one first heading"):
        for path, page in parsed.items():
            # A script writes the heading of the search.
            if path.parent.name != "_static" and path.name != "search.html":
                assert page.attributes["html"].get("lang"), path
                assert "title" in page.tags, path
                assert page.tags.count("h1") == 1, path
                assert re.search(r'role="main"|<main', text[path]), path

    with subtests.test("every picture has a text"):
        assert [
            (path.name, page.pictures_without_text) for path, page in parsed.items() if page.pictures_without_text
        ] == []

    for name in pages.built_in("homogenizers"):
        with subtests.test("a homogenizer has its page with formula, picture, use, cost and command", name=name):
            content = text[site / "methods" / f"{name}.html"]
            for heading in ("Formula", "When to use it", "Options", "Cost", "Properties", "Source"):
                assert f">{heading}<" in content, heading
            assert f"{name}.svg" in content
            assert 'class="math' in content
            assert "gradhomog compare" in re.sub(r"<[^>]+>", "", content)

    content = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(content[content.index("(") + 1 : content.rindex(")")])
    titles = index["titles"]
    for words, page in SEARCHES.items():
        with subtests.test("a search leads to the heading that answers it", words=words):
            places = [
                place for heading, found in index["alltitles"].items() if words in heading.lower() for place in found
            ]
            assert page in [index["docnames"][document] for document, _ in places]
    with subtests.test("a search from disk shows the lines that match"):
        assert "Missing labels" in (site / "_static" / "page_texts.js").read_text(encoding="utf-8")
        assert "page_texts.js" in text[site / "search.html"]
    for name in pages.built_in("learners"):
        with subtests.test("a learner has its section", name=name):
            assert f'id="learner-{name.replace("_", "-")}"' in text[site / "reference" / "learners.html"]
    for name in gradhomog.__all__:
        with subtests.test("a public name has its page, or is an error on the page of errors", name=name):
            found = getattr(gradhomog, name)
            if isinstance(found, type) and issubclass(found, Exception):
                assert f"gradhomog.errors.{name}" in parsed[site / "reference" / "errors.html"].anchors
                assert name in "".join(pages.text("reference/errors.md"))
            elif callable(found) and getattr(found, "__doc__", None) and hasattr(found, "__name__"):
                assert name in titles
    with subtests.test("the leaderboard can be sorted, and has the tiers"):
        leaderboard = text[site / "results" / "suite" / "leaderboard.html"]
        assert 'class="sortable"' in leaderboard
        assert "sort.js" in leaderboard
        assert "<td>recommended</td>" in leaderboard
    with subtests.test("every command has its help"):
        help_text = re.sub(r"<[^>]+>", "", text[site / "reference" / "cli.html"])
        for command in cli.COMMANDS:
            assert f"gradhomog {command}" in help_text
    with subtests.test("every check is listed"):
        for kind in ("homogenizers", "learners"):
            for check in checks(kind):  # type: ignore[arg-type]
                assert check.name in text[site / "reference" / "checks.html"]


def test_the_page_of_errors_has_every_error() -> None:
    page = pages.text("reference/errors.md")
    classes = [
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, Warning | Exception)
    ]
    assert [name for name in classes if f"gradhomog.{name}`" not in page and name != "GradhomogError"] == []


def test_doctests_of_the_page_makers_pass() -> None:
    failed, tried = doctest.testmod(importlib.import_module("_site.docstrings"))
    assert (failed, tried > 0) == (0, True)


def test_the_picture_of_the_readme_is_that_of_its_script(tmp_path: Path) -> None:
    """Equal shapes: the positions of the paths of the committed picture are those of a new one, up to rounding."""
    pytest.importorskip("matplotlib")
    plane = importlib.import_module("_site.plane")
    plane.save(plane.readme(), tmp_path / "new.svg")
    numbers = [
        [float(number) for number in re.findall(r"-?\d+\.\d+", "".join(re.findall(r' d="([^"]+)"', path.read_text())))]
        for path in (pages.DOCS / "images" / "directions.svg", tmp_path / "new.svg")
    ]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.5)

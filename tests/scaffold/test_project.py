"""The files of a project: metadata, dependencies, licence, and code that uses public names only."""

from __future__ import annotations

import ast
import datetime
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
import gradhomog.testing
from gradhomog import OptionError
from gradhomog.scaffold.project import dependency_range, names, project, write_project
from tests.test_house import imports

KINDS = ("homogenizers", "learners", "domains", "problems")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_contain_no_marker_of_the_templates(kind):
    for path, text in project(names("x"), kind, author="Ada").texts.items():
        for marker in ("plugin_name", "plugin-name", "PluginName", "<author>", "<year>", "<group>"):
            assert marker not in text, path


@pytest.mark.parametrize("kind", KINDS)
def test_the_metadata_contain_the_entry_point_the_range_of_gradhomog_and_the_kit(kind):
    data = tomllib.loads(project(names("sign-vote"), kind).texts["pyproject.toml"])
    own = data["project"]
    assert own["name"] == "gradhomog-sign-vote"
    assert own["entry-points"] == {f"gradhomog.{kind}": {"sign_vote": "gradhomog_sign_vote"}}
    versions = dependency_range(gradhomog.__version__)
    assert own["dependencies"] == [f"gradhomog{versions}", "annotated-types>=0.7"]
    assert f"gradhomog[check]{versions}" in own["optional-dependencies"]["test"]
    assert (own["license"], own["license-files"]) == ("MIT", ["LICENSE"])
    assert own["authors"] == [{"name": "The gradhomog-sign-vote authors"}]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0", ">=0.1,<0.2"),
        ("0.9.3", ">=0.9,<0.10"),
        ("1.4.2", ">=1.4,<2"),
        ("0.2.0.dev1+local", ">=0.2.0.dev1,<0.3"),
        ("2.0rc1", ">=2.0rc1,<3"),
    ],
)
def test_the_range_contains_the_running_version_and_excludes_the_next_incompatible_one(version, expected):
    from packaging.specifiers import SpecifierSet

    assert dependency_range(version) == expected
    assert SpecifierSet(expected).contains(version.partition("+")[0], prereleases=True)


def test_the_licence_is_declared_and_its_file_has_its_text_year_and_author():
    texts = project(names("x"), author="Ada Lovelace").texts
    for sentence in ("Permission is hereby granted, free of charge", f"{datetime.date.today().year} Ada Lovelace"):
        assert sentence in texts["LICENSE"]


@given(
    st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(lambda text: text and text.isprintable())
)
def test_any_author_is_written_unchanged(author):
    texts = project(names("x"), author=author).texts
    assert tomllib.loads(texts["pyproject.toml"])["project"]["authors"] == [{"name": author}]
    assert f" {author}\n" in texts["LICENSE"]


@pytest.mark.parametrize("author", ["", "  ", "two\nlines", "bell\a"])
def test_an_author_without_a_printable_name_raises(author):
    with pytest.raises(OptionError, match="`--author` must be a name on one line; got"):
        project(names("x"), author=author)


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_uses_public_names_only(kind, tmp_path, monkeypatch):
    folder = write_project(project(names("sign-vote"), kind), tmp_path)
    monkeypatch.setattr("tests.test_house.ROOT", folder)
    public = {"gradhomog", "gradhomog.testing"}
    public |= {f"gradhomog.{name}" for name in gradhomog.__all__}
    public |= {f"gradhomog.testing.{name}" for name in gradhomog.testing.__all__}
    used: set[str] = set()
    for path in folder.rglob("*.py"):
        used |= {name for name in imports(path) if name.partition(".")[0] == "gradhomog"}
        used |= {
            ast.unparse(node)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gradhomog"
        }
    assert len(used) > 4
    assert used <= public

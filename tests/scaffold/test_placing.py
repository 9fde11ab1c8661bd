"""Putting a project in its place: whole or not at all, over nothing of the user's, under a name that nobody has."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradhomog
from gradhomog import OptionError, PluginError, Registry
from gradhomog.scaffold.naming import names
from gradhomog.scaffold.placing import check_free, write
from gradhomog.scaffold.project import project

KINDS = ("homogenizer", "learner", "domain")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_those_of_a_distribution(kind, tmp_path):
    made = project(names("sign-vote"), kind)
    folder = write(made, tmp_path)
    assert folder == tmp_path / "gradhomog-sign-vote"
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written == set(made.texts) == {
        ".gitignore", "LICENSE", "README.md", "pyproject.toml", "gradhomog_sign_vote/__init__.py",
        "gradhomog_sign_vote/_sign_vote.py", "tests/test_sign_vote.py",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["gradhomog-sign-vote"]
    assert folder.stat().st_mode & 0o777 == (tmp_path / "gradhomog-sign-vote" / "tests").stat().st_mode & 0o777


def test_a_folder_that_is_not_empty_is_left_as_it_is(tmp_path):
    target = tmp_path / "gradhomog-x"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(OptionError, match=r"gradhomog-x exists and is not empty\. Move it, or choose another name"):
        write(project(names("x")), tmp_path)
    assert [path.name for path in target.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "gradhomog-x").mkdir()
    assert (write(project(names("x")), tmp_path) / "README.md").is_file()


@pytest.mark.parametrize("made", ["file", "link"])
def test_what_is_no_folder_is_not_replaced(made, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    if made == "file":
        (tmp_path / "gradhomog-x").write_text("mine")
    else:
        (tmp_path / "gradhomog-x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="gradhomog-x exists and is no folder"):
        write(project(names("x")), tmp_path)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_to_write_into_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"`--into` must be a folder that exists; got .*nowhere.*\. Make it first"):
        write(project(names("x")), tmp_path / "nowhere")


@pytest.mark.parametrize("failing", range(7))
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["full disk", "interrupted"])
def test_a_write_that_fails_leaves_nothing_behind(failing, error, tmp_path, monkeypatch):
    original, count = Path.write_text, iter(range(100))

    def fail(self, *arguments, **options):
        if next(count) == failing:
            raise error
        return original(self, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(type(error)):
        write(project(names("x")), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_a_built_in_has_is_refused_with_its_distribution_and_version():
    message = f"the name 'pcgrad' is taken: gradhomog {gradhomog.__version__} offers a homogenizer of this name."
    with pytest.raises(PluginError) as refused:
        check_free(names("pcgrad"), Registry())
    assert message in str(refused.value)


@pytest.mark.parametrize(("name", "kind"), [("maml", "learner"), ("glyphs", "domain")])
def test_a_name_that_another_kind_has_is_refused_too(name, kind):
    with pytest.raises(PluginError, match=f"offers a {kind} of this name"):
        check_free(names(name), Registry())


def test_a_name_that_a_third_party_has_is_refused_with_its_distribution_and_version(gradhomog_install):
    gradhomog_install("other-dist", "", plugin="sign_vote", version="3.4")
    with pytest.raises(PluginError, match=r"the name 'sign_vote' is taken: other-dist 3\.4 offers a homogenizer"):
        check_free(names("sign-vote"), Registry())


def test_a_name_whose_module_exists_is_refused_with_its_place():
    with pytest.raises(PluginError, match=r"the module gradhomog_plugins exists already: .*__init__\.py"):
        check_free(names("plugins"), Registry())


def test_a_free_name_is_free():
    check_free(names("sign-vote"), Registry())

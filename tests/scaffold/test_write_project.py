"""Writing a project: all files or none, without overwriting files, and under a name that is not in use."""

import re
from pathlib import Path

import pytest

import gradhomog
from gradhomog import OptionError, PluginError, Registry
from gradhomog.scaffold.project import check_name_is_free, names, project, write_project

KINDS = ("homogenizers", "learners", "domains", "problems")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_those_of_a_distribution(kind, tmp_path):
    made = project(names("sign-vote"), kind)
    folder = write_project(made, tmp_path)
    assert folder == tmp_path / "gradhomog-sign-vote"
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written == set(made.texts) == {
        ".gitignore", "LICENSE", "README.md", "pyproject.toml", "gradhomog_sign_vote/__init__.py",
        "gradhomog_sign_vote/_sign_vote.py", "tests/test_sign_vote.py",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["gradhomog-sign-vote"]
    assert folder.stat().st_mode & 0o777 == (tmp_path / "gradhomog-sign-vote" / "tests").stat().st_mode & 0o777


def test_a_folder_that_is_not_empty_is_not_changed(tmp_path):
    target = tmp_path / "gradhomog-x"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(OptionError, match=r"gradhomog-x exists and is not empty\. Move it, or choose another name"):
        write_project(project(names("x")), tmp_path)
    assert [path.name for path in target.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "gradhomog-x").mkdir()
    assert (write_project(project(names("x")), tmp_path) / "README.md").is_file()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_or_link_is_not_replaced(kind, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        (tmp_path / "gradhomog-x").write_text("mine")
    else:
        (tmp_path / "gradhomog-x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="gradhomog-x exists and is not a folder"):
        write_project(project(names("x")), tmp_path)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_missing_parent_folder_raises(tmp_path):
    with pytest.raises(OptionError, match=r"`--into` must be an existing folder; got .*nowhere.*\. Create it first"):
        write_project(project(names("x")), tmp_path / "nowhere")


@pytest.mark.parametrize("failing", range(7))
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["full disk", "interrupted"])
def test_a_failed_write_leaves_no_files(failing, error, tmp_path, monkeypatch):
    original, count = Path.write_text, iter(range(100))

    def fail(self, *arguments, **options):
        if next(count) == failing:
            raise error
        return original(self, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(type(error)):
        write_project(project(names("x")), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "kind"), [("pcgrad", "homogenizer"), ("maml", "learner"), ("glyphs", "domain")])
def test_the_name_of_a_built_in_plugin_raises_with_its_distribution_version_and_kind(name, kind):
    message = f"the name '{name}' is in use: gradhomog {gradhomog.__version__} has a {kind} with this name."
    with pytest.raises(PluginError, match=re.escape(message)):
        check_name_is_free(names(name), Registry())


def test_the_name_of_a_third_party_plugin_raises_with_its_distribution_and_version(gradhomog_install):
    gradhomog_install("other-dist", "", plugin="sign_vote", version="3.4")
    with pytest.raises(PluginError, match=r"the name 'sign_vote' is in use: other-dist 3\.4 has a homogenizer"):
        check_name_is_free(names("sign-vote"), Registry())


def test_the_name_of_an_existing_module_raises_with_its_path():
    with pytest.raises(PluginError, match=r"the module gradhomog_plugins already exists: .*__init__\.py"):
        check_name_is_free(names("plugins"), Registry())


def test_an_unused_name_is_accepted():
    check_name_is_free(names("sign-vote"), Registry())

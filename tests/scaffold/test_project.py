"""A project: its names, its metadata and code, all files or none, and only under a name that is not in use."""

import ast
import datetime
import keyword
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

import gradhomog
import gradhomog.testing
from gradhomog import OptionError, PluginError, Registry
from gradhomog.registry import expression
from gradhomog.scaffold.project import (
    LONGEST,
    Names,
    check_name_is_free,
    dependency_range,
    names,
    project,
    write_project,
)
from tests.test_house import imports

WORDS = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
PARTS = st.lists(WORDS, min_size=1, max_size=4).filter(lambda parts: parts[0] != "gradhomog")


def usable(parts: list[str]) -> bool:
    name = "_".join(parts)
    return len(name) <= LONGEST and not keyword.iskeyword(name) and name not in ("none", "true", "false", "inf")


@given(PARTS.filter(usable), st.sampled_from("-_"), st.sampled_from(["", "gradhomog-", "gradhomog_"]))
def test_all_spellings_of_a_name_give_the_same_plugin(parts: list[str], separator: str, prefix: str) -> None:
    found = names(prefix + separator.join(parts))
    assert found.plugin == "_".join(parts)
    assert found.distribution == "gradhomog-" + "-".join(parts)
    assert found.module == "gradhomog_" + "_".join(parts)


@given(PARTS.filter(usable))
def test_an_accepted_name_is_valid_as_a_distribution_a_module_a_class_and_in_a_pipeline(parts: list[str]) -> None:
    found = names("-".join(parts))
    assert canonicalize_name(found.distribution) == found.distribution
    assert found.module.isidentifier()
    assert expression.parse(found.plugin) == [(found.plugin, {})]
    name = found.class_name("homogenizers", "")
    assert name.isidentifier()
    assert not keyword.iskeyword(name)
    assert name[0].isupper()


@given(st.text(max_size=40))
def test_any_text_is_accepted_or_raises_with_a_suggestion_that_is_accepted(text: str) -> None:
    try:
        found = names(text)
    except OptionError as error:
        suggested = re.search(r"Write '([^']*)', for example\.\Z", str(error))
        assert suggested
        assert names(suggested[1])
    else:
        assert names(found.distribution) == names(found.plugin) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "",
            "must start with a letter and contain only lower-case letters, digits and single hyphens; got ''. "
            "Write 'sign-vote'",
        ),
        ("sign vote!", "got 'sign vote!'. Write 'sign-vote'"),
        ("gradhomog", "must not be gradhomog itself; got 'gradhomog'"),
        ("gradhomog-lambda", "must not be a keyword of Python; got 'gradhomog-lambda'. Write 'lambda-rows'"),
        ("none", "must not be a reserved word of the text form of a pipeline; got 'none'. Write 'none-rows'"),
        ("a" * 29, f"must have at most 28 characters; got '{'a' * 29}'. Write '{'a' * 28}'"),
    ],
)
def test_an_invalid_name_raises_with_a_valid_one(given: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        names(given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("plugin", "source", "expected"),
    [
        ("sign_vote", "class PluginName: ...", "SignVote"),
        ("sign_vote", "from gradhomog import SignVotes", "SignVote"),
        ("step", "from gradhomog import Step", "StepLearner"),
        ("value_error", "", "ValueErrorLearner"),
        ("r2_d2", "", "R2D2"),
    ],
)
def test_the_class_does_not_shadow_another_name(plugin: str, source: str, expected: str) -> None:
    assert Names(plugin).class_name("learners", source) == expected


KINDS = ("homogenizers", "learners", "problems")


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
    [("0.9.3", ">=0.9,<0.10"), ("1.4.2", ">=1.4,<2"), ("0.2.0.dev1+local", ">=0.2.0.dev1,<0.3")],
)
def test_the_range_contains_the_running_version_and_excludes_the_next_incompatible_one(version, expected):
    from packaging.specifiers import SpecifierSet

    assert dependency_range(version) == expected
    assert SpecifierSet(expected).contains(version.partition("+")[0], prereleases=True)


@given(
    st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(lambda text: text and text.isprintable())
)
def test_any_author_is_written_unchanged_into_the_metadata_and_with_the_year_into_the_licence(author):
    texts = project(names("x"), author=author).texts
    assert tomllib.loads(texts["pyproject.toml"])["project"]["authors"] == [{"name": author}]
    assert "Permission is hereby granted, free of charge" in texts["LICENSE"]
    assert f"{datetime.date.today().year} {author}\n" in texts["LICENSE"]


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

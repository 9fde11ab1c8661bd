"""`gradhomog new`: output, exit codes, and messages instead of tracebacks."""

import json
import shlex

import pytest

import gradhomog
from gradhomog.cli import main, parser
from gradhomog.experiments.run_file.schema import load


@pytest.mark.parametrize("spelling", ["sign-vote", "sign_vote", "gradhomog-sign-vote"])
def test_files_and_next_commands_are_printed(spelling, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", spelling]) == 0
    files, commands = capsys.readouterr().out.split("\n\nNext:\n")
    assert all((tmp_path / line).is_file() for line in files.splitlines())
    assert "gradhomog-sign-vote/gradhomog_sign_vote/_sign_vote.py" in files.splitlines()
    install, check, compare = (line.strip() for line in commands.splitlines())
    assert install == "python -m pip install -e './gradhomog-sign-vote[test]'"
    assert check == "gradhomog check sign_vote"
    assert compare == """gradhomog compare --set 'homogenizers=["none", "sign_vote"]'"""


@pytest.mark.parametrize("kind", ["homogenizers", "learners", "problem"])
def test_json_has_names_folder_files_and_commands(kind, tmp_path, capsys):
    given = ["new", "x-y", "--kind", kind, "--into", str(tmp_path), "--author", "Ada", "--json"]
    assert main(given) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["plugin"], data["kind"]) == ("x_y", kind.removesuffix("s") + "s")
    assert (data["distribution"], data["module"]) == ("gradhomog-x-y", "gradhomog_x_y")
    assert data["folder"] == str(tmp_path / "gradhomog-x-y")
    assert "LICENSE" in data["files"]
    assert all((tmp_path / "gradhomog-x-y" / path).is_file() for path in data["files"])
    assert len(data["commands"]) == 3
    assert 'name = "Ada"' in (tmp_path / "gradhomog-x-y" / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["homogenizers", "learners", "problems"])
def test_the_commands_of_the_readme_are_valid(kind, tmp_path, capsys):
    main(["new", "x-y", "--kind", kind, "--into", str(tmp_path)])
    readme = (tmp_path / "gradhomog-x-y" / "README.md").read_text(encoding="utf-8")
    lines = [line for line in readme.splitlines() if line.startswith("gradhomog ")]
    assert {line.split()[1] for line in lines} == {"show", "compare", "suite" if kind == "problems" else "check"}
    for line in lines:
        given = parser().parse_args(shlex.split(line)[1:])
        assert "x_y" in line
        if given.command == "compare" and kind != "problems":  # which must be installed
            assert "x_y" in str(load(None, given.overrides).to_dict())


def test_a_folder_with_a_space_is_quoted_in_the_command(tmp_path, capsys):
    (tmp_path / "my plugins").mkdir()
    main(["new", "x", "--into", str(tmp_path / "my plugins")])
    install = capsys.readouterr().out.split("Next:\n")[1].splitlines()[0]
    assert shlex.split(install)[-1] == f"{tmp_path}/my plugins/gradhomog-x[test]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SignVote"], "Write 'sign-vote', for example"),
        (["pcgrad"], f"the name 'pcgrad' is in use: gradhomog {gradhomog.__version__} has a homogenizer"),
        (["x", "--author", ""], "`--author` must be a name on one line; got ''"),
        (["x", "--into", "nowhere"], "`--into` must be an existing folder; got 'nowhere'"),
        (["full"], "gradhomog-full exists and is not empty"),
    ],
)
def test_invalid_input_is_one_message_exit_code_2_and_no_file(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gradhomog-full").mkdir()
    (tmp_path / "gradhomog-full" / "mine.txt").touch()
    assert main(["new", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["gradhomog-full", "mine.txt"]

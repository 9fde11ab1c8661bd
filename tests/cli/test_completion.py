"""TAB completion in a real shell, and suggestions for misspelled commands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradhomog.cli import main

BASH = """
eval "$(gradhomog completion bash)"
complete -p gradhomog > /dev/null || exit 1
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete gradhomog
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has a program `gradhomog` of this interpreter."""
    script = tmp_path / "bin" / "gradhomog"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gradhomog "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.slow_after_first
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gradhomog co", {"compare", "completion"}),
        ("gradhomog show pcg", {"pcgrad"}),
        ("gradhomog show --kind domains ", {"functions", "glyphs", "images"}),
        ("gradhomog check cs", set()),  # an observer: the kit has no checks for it
        ("gradhomog data check folder eu", {"eurosat"}),
    ],
)
def test_bash_completes_commands_options_and_plugins(line: str, expected: set[str], program: dict[str, str]) -> None:
    command = ["bash", "--norc", "-c", BASH, "bash", line]
    done = subprocess.run(command, env=program, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    found = {word.strip() for word in done.stdout.splitlines()} - {""}
    assert expected <= found
    if not line.endswith(" "):
        assert found == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_has_valid_syntax_in_its_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "gradhomog" in script
    if (found := shutil.which(shell)) is not None:
        assert subprocess.run([found, "-n", "-c", script], capture_output=True, timeout=60).returncode == 0


def test_without_argcomplete_an_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'gradhomog[completion]'" in capsys.readouterr().err

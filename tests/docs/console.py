"""Run the files and commands of a page in one shell, in order, and compare the outputs.

A file is a fenced block after a line `<!-- file: path -->`. A ```console block has commands after `$ `, each followed
by its output with standard error; `…` matches any text within a line, and alone on a line any lines. A command must
succeed unless the next one is `echo $?`, which prints its exit code.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "=== end of command"


@dataclass(frozen=True)
class File:
    path: str
    content: str


@dataclass(frozen=True)
class Command:
    line: str
    shown: str


def steps(text: str) -> list[File | Command]:
    """The files and commands of a page, in order."""
    found: list[File | Command] = []
    for path, language, content in re.findall(
        r"^(?:<!-- file: (\S+) -->\n\n?)?```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    ):
        if path:
            found.append(File(path, content))
        elif language == "console":
            for command in re.findall(r"^\$ .*\n(?:(?!\$ ).*\n)*", content, re.MULTILINE):
                line, _, shown = command.removeprefix("$ ").partition("\n")
                found.append(Command(line, shown))
    return found


def run(taken: list[File | Command], folder: Path, environment: Mapping[str, str], timeout: float) -> list[str]:
    """Differences between page and output, one text per command; files are written below `folder`."""
    script = ["exec 2>&1"]
    for step in taken:
        if isinstance(step, File):
            script.append(f"mkdir -p \"$(dirname {step.path})\"\ncat > {step.path} <<'EOF'\n{step.content}EOF")
        else:
            script.append(f"{step.line}\ncode=$?; printf '\\n%s %s\\n' '{MARK}' $code; (exit $code)")
    # A process: a page shows commands of a shell.
    result = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    commands = [step for step in taken if isinstance(step, Command)]
    outputs = re.findall(rf"(.*?)\n{MARK} (\d+)\n", result.stdout, re.DOTALL)
    if len(outputs) != len(commands):
        return [f"{len(outputs)} of {len(commands)} commands were run:\n{result.stdout}"]
    complaints = []
    for index, (command, (output, code)) in enumerate(zip(commands, outputs, strict=True)):
        reported = index + 1 < len(commands) and commands[index + 1].line == "echo $?"
        if code != "0" and not reported:
            complaints.append(f"$ {command.line}\nexit code {code}:\n{output}")
        elif not matches(command.shown, output):
            complaints.append(f"$ {command.line}\nthe page shows:\n{command.shown}\nit printed:\n{output}")
    return complaints


def matches(shown: str, output: str) -> bool:
    """Compare an output with the text on a page.

    >>> matches("a\\n…\\nz … s\\n", "a\\nb\\nc\\nz 1.5 s\\n")
    True
    >>> matches("a\\n", "a\\nb\\n")
    False
    """
    return _fits(_lines(shown), _lines(output))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _fits(shown: list[str], output: list[str]) -> bool:
    if not shown:
        return not output
    if shown[0].strip() == "…":
        return any(_fits(shown[1:], output[start:]) for start in range(len(output) + 1))
    pattern = ".*".join(map(re.escape, shown[0].split("…")))
    return bool(output) and re.fullmatch(pattern, output[0]) is not None and _fits(shown[1:], output[1:])

"""The command line. Nothing heavy is imported before a command needs it: `--help` and `list` never import torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import gradhomog
from gradhomog.cli import check, compare, completion, env, list_, new, profile, report, show, train, verify
from gradhomog.cli._process import forget_interrupt, print_any_text, terminate_as_interrupt
from gradhomog.errors import GradhomogError

COMMANDS = (list_, show, env, train, compare, report, verify, profile, check, new, completion)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="gradhomog",
        description="Gradient homogenization for meta-learning and multi-task learning.",
        epilog="Exit codes: 0 all went well; 1 something ran and failed; 2 the input is not usable; 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"gradhomog {gradhomog.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        with terminate_as_interrupt():
            print_any_text()
            return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        forget_interrupt()
        print("gradhomog: interrupted.", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str]) -> int:
    top = parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
        completion.complete(top)
    _require_command(top, arguments)
    given = top.parse_args(arguments)
    try:
        code: int = given.run(given)
        sys.stdout.flush()
        return code
    except GradhomogError as error:
        print(f"gradhomog: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `gradhomog list | head`: nobody reads on, which is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that is a file: what was written so far stays
        print(f"gradhomog: {error}", file=sys.stderr)
        return 1


def _require_command(top: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Exit with an error that suggests a command where there is none of this name; argparse suggests nothing."""
    names = [module.__name__.rpartition(".")[2].strip("_") for module in COMMANDS]
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command is not None and command not in names:
        from gradhomog.experiments.config.suggestions import did_you_mean

        top.error(f"no command is called '{command}'.{did_you_mean(command, names)} Commands: {', '.join(names)}.")

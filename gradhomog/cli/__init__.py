"""The command line. Nothing heavy is imported before a command needs it: `--help` and `list` never import torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import gradhomog
from gradhomog.cli import check, compare, env, list_, new, profile, report, show, train, verify
from gradhomog.errors import GradhomogError

COMMANDS = (list_, show, env, train, compare, report, verify, profile, check, new)


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
    given = parser().parse_args(arguments)
    try:
        code: int = given.run(given)
        sys.stdout.flush()
        return code
    except GradhomogError as error:
        print(f"gradhomog: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gradhomog: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `gradhomog list | head`: nobody reads on, which is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that is a file: what was written so far stays
        print(f"gradhomog: {error}", file=sys.stderr)
        return 1

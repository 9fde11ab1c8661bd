"""The command line. Commands import heavy libraries only when they run: `--help` and `list` never import torch."""

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import gradhomog
from gradhomog.errors import GradhomogError, did_you_mean
from gradhomog.terminal import escaped_output


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Context in which SIGTERM raises KeyboardInterrupt, as SIGINT does: finished work is kept, the exit code is 130.

    If another SIGTERM handler is set, or SIGTERM is ignored, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


COMMANDS: dict[str, Any] = {
    name.strip("_"): import_module(f"gradhomog.cli.{name}")
    for name in (
        "list_", "show", "env", "data", "train", "compare", "suite", "reproduce", "report", "verify", "diagnose",
        "profile", "check", "new", "completion",
    )
}  # fmt: skip
"""The modules of the commands. Each has a `SUMMARY`, a docstring for `--help`, `add_arguments(parser)` and `run(args)`,
which returns the exit code."""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="gradhomog",
        description="Gradient homogenization for meta-learning and multi-task learning.",
        epilog="Exit codes: 0 success; 1 a run, a check or a file operation failed; 2 invalid input; 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"gradhomog {gradhomog.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.SUMMARY, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.set_defaults(run=module.run)
        module.add_arguments(command)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        # Print `?` for characters that the output's encoding lacks, so that `±` is no error after hours of training.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        with sigterm_as_interrupt(), escaped_output():
            return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        # CPython marks a KeyboardInterrupt that passes through `exec` of a string (for example, when a dataclass is
        # created during an import) as unhandled, and ends the process with SIGINT although the exception was caught.
        # Another `exec` of a string resets the mark.
        exec("")
        print("gradhomog: interrupted.", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str]) -> int:
    top = parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell requests completions
        COMMANDS["completion"].complete(top)
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:  # argparse makes no suggestions
        top.error(f"unknown command '{command}'.{did_you_mean(command, COMMANDS)} Commands: {', '.join(COMMANDS)}.")
    args = top.parse_args(arguments)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except GradhomogError as error:
        print(f"gradhomog: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `gradhomog list | head`: a reader that closes the pipe early is not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, or a file where a folder is needed; files written so far remain
        print(f"gradhomog: {error}", file=sys.stderr)
        return 1

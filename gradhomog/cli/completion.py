"""`gradhomog completion SHELL`: print a script for TAB completion of commands, options and plugin names.

Add one line to the configuration of your shell:

- bash, in `~/.bashrc`: `eval "$(gradhomog completion bash)"`
- zsh, in `~/.zshrc` after `compinit`: `eval "$(gradhomog completion zsh)"`
- fish, in `~/.config/fish/config.fish`: `gradhomog completion fish | source`

Plugins that are installed later are included, because the shell calls gradhomog for each completion. Requires the
library argcomplete: `pip install 'gradhomog[completion]'`.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradhomog.errors import OptionError

if TYPE_CHECKING:
    from gradhomog.registry import Kind

SUMMARY = "print a script for TAB completion in a shell"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to print the script for")


def run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("argcomplete") is None:
        raise OptionError(
            "completion requires the library argcomplete, which is not installed. "
            "Install it with: pip install 'gradhomog[completion]'"
        )
    from argcomplete.shell_integration import shellcode

    print(shellcode(["gradhomog"], shell=args.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Print completions of the current command line and end the process; do nothing without argcomplete."""
    if importlib.util.find_spec("argcomplete") is not None:
        import argcomplete

        argcomplete.autocomplete(parser)


def complete_plugin_names(argument: argparse.Action, kinds: Sequence[Kind] | None = None) -> None:
    """Complete names of plugins of these kinds (default: all); with `--kind`, of that kind only."""

    def complete_names(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
        from gradhomog.registry import KINDS, installed

        kind = getattr(parsed_args, "kind", None)
        selected = [kind] if kind else kinds or KINDS
        return sorted({name for kind in selected for name in installed().names(kind) if name.startswith(prefix)})

    argument.completer = complete_names  # type: ignore[attr-defined]  # called by argcomplete

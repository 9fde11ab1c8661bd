"""`gradhomog completion SHELL`: print the script that completes commands, options and names of plugins with TAB.

bash, in ~/.bashrc:                    eval "$(gradhomog completion bash)"
zsh, in ~/.zshrc after compinit:       eval "$(gradhomog completion zsh)"
fish, in ~/.config/fish/config.fish:   gradhomog completion fish | source

Plugins that are installed later are completed too: the shell asks the program itself. Needs the library argcomplete:
pip install 'gradhomog[completion]'.
"""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from gradhomog.errors import OptionError


def add(commands: Any) -> None:
    command = commands.add_parser(
        "completion", help="print the script that completes commands with TAB", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose script")
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if importlib.util.find_spec("argcomplete") is None:
        raise OptionError(
            "completion needs the library argcomplete, which is not installed. "
            "Install it with: pip install 'gradhomog[completion]'"
        )
    from argcomplete.shell_integration import shellcode

    print(shellcode(["gradhomog"], shell=given.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Print completions of what the shell has read so far, and end the process; nothing without argcomplete."""
    if importlib.util.find_spec("argcomplete") is not None:
        import argcomplete

        argcomplete.autocomplete(parser)


def plugin_names(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Names of plugins, of one kind if `--kind` is given: a completer of argcomplete, by its names of parameters."""
    from gradhomog.registry import KINDS, installed

    kinds = [parsed_args.kind] if parsed_args.kind else KINDS
    return sorted({name for kind in kinds for name in installed().names(kind) if name.startswith(prefix)})

"""`gradhomog new NAME`: write a complete plugin project, which can be installed and has passing tests.

For example, NAME can be written as sign-vote, sign_vote or gradhomog-sign-vote. In each case the folder and the
distribution are named gradhomog-sign-vote, the module gradhomog_sign_vote, and the plugin sign_vote.
"""

import argparse
from pathlib import Path

from gradhomog.cli._output import add_json, print_result

SUMMARY = "write a new plugin project"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="name of the plugin")
    command.add_argument(
        "--kind", choices=("homogenizers", "learners", "problems"), default="homogenizers",
        type=lambda text: f"{text.removesuffix('s')}s", help="kind of the plugin (default: homogenizers)",
    )  # fmt: skip
    command.add_argument(
        "--into", type=Path, default=Path(), metavar="DIR",
        help="existing folder to create the project folder in (default: the current folder)",
    )  # fmt: skip
    command.add_argument(
        "--author", metavar="NAME", help="copyright holder in LICENSE (default: the project's authors)"
    )
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from gradhomog.registry import installed
    from gradhomog.scaffold.project import check_name_is_free, names, next_commands, project, write_project

    plugin_names = names(args.name)
    check_name_is_free(plugin_names, installed())
    content = project(plugin_names, args.kind, args.author)
    folder = write_project(content, args.into)
    commands = next_commands(content, folder)
    data = {
        "plugin": plugin_names.plugin, "kind": args.kind, "distribution": plugin_names.distribution,
        "module": plugin_names.module, "folder": str(folder.resolve()), "files": list(content.texts),
        "commands": commands,
    }  # fmt: skip
    lines = [*(str(folder / path) for path in content.texts), "\nNext:", *(f"  {line}" for line in commands)]
    print_result(args, data, "\n".join(lines))
    return 0

"""`gradhomog new NAME`: write a complete plugin project to start from: it installs, and passes its own tests.

NAME may be sign-vote, sign_vote or gradhomog-sign-vote: the folder and the distribution are called gradhomog-sign-vote,
the module gradhomog_sign_vote, and what users type is sign_vote.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gradhomog.cli._output import add_json, print_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "new", help="write a new plugin project", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("name", metavar="NAME", help="of the plugin")
    command.add_argument(
        "--kind", choices=("homogenizer", "learner", "domain"), default="homogenizer",
        help="what it adds; a homogenizer by default",
    )  # fmt: skip
    command.add_argument(
        "--into", type=Path, default=Path(), metavar="DIR", help="where its folder is made; here by default"
    )
    command.add_argument(
        "--licence", default="MIT", metavar="{MIT,Apache-2.0,BSD-3-Clause,none}", help="MIT by default"
    )
    command.add_argument("--author", metavar="NAME", help="who stands in LICENSE; by default the project's authors")
    add_json(command)
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from gradhomog.registry import installed
    from gradhomog.scaffold.naming import names
    from gradhomog.scaffold.placing import check_free, next_commands, write
    from gradhomog.scaffold.project import project

    called = names(given.name)
    check_free(called, installed())
    made = project(called, given.kind, given.licence, given.author)
    folder = write(made, given.into)
    commands = next_commands(made, folder)
    if given.json:
        print_json(
            {
                "plugin": called.plugin, "kind": given.kind, "distribution": called.distribution,
                "module": called.module, "folder": str(folder.resolve()), "files": list(made.texts),
                "commands": commands,
            }
        )  # fmt: skip
        return 0
    for path in made.texts:
        print(folder / path)
    print("\nNext:")
    for line in commands:
        print(f"  {line}")
    return 0

"""`gradhomog list`: the installed plugins, read from metadata; none of them is imported."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from gradhomog.cli._output import add_json, print_json, print_table

if TYPE_CHECKING:
    from gradhomog.registry import Kind

KINDS: tuple[Kind, ...] = ("homogenizers", "learners", "domains", "observers")


def add(commands: Any) -> None:
    command = commands.add_parser("list", help="list installed plugins", description=__doc__)
    command.add_argument("kind", nargs="?", choices=KINDS, help="one kind of plugin; all by default")
    add_json(command)
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from gradhomog.registry import installed

    infos = [info for kind in KINDS if given.kind in (None, kind) for info in installed().list(kind)]
    if given.json:
        print_json([dataclasses.asdict(info) for info in infos])
        return 0
    rows = [("KIND", "NAME", "DISTRIBUTION", "MODULE")]
    for info in infos:
        name = f"{info.name} (disabled)" if info.disabled else info.name
        rows.append((info.kind[:-1], name, f"{info.distribution} {info.version}", info.module))
    print_table(rows)
    return 0

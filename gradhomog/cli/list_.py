"""`gradhomog list`: list the installed plugins from their metadata, without importing them."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from gradhomog.cli._output import add_json, print_result
from gradhomog.table import aligned

if TYPE_CHECKING:
    from gradhomog.registry import Kind

# Not imported from the registry, which takes as long as all other imports of the command line.
KINDS: tuple[Kind, ...] = (
    "homogenizers", "learners", "domains", "problems", "networks", "benchmarks", "observers",
)  # fmt: skip

GROUPS: tuple[Kind, ...] = (*KINDS, "papers")


SUMMARY = "list installed plugins"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("kind", nargs="?", choices=GROUPS, help="list only this kind of plugin (default: all)")
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from gradhomog.registry import installed

    infos = [info for kind in GROUPS if args.kind in (None, kind) for info in installed().list(kind)]
    rows = [("KIND", "NAME", "DISTRIBUTION", "MODULE")]
    for info in infos:
        name = f"{info.name} (disabled)" if info.disabled else info.name
        rows.append((info.kind[:-1], name, f"{info.distribution} {info.version}", info.module))
    print_result(args, [dataclasses.asdict(info) for info in infos], "\n".join(aligned(rows)))
    return 0

"""`gradhomog list`: list the installed plugins from their metadata and sources, without importing them.

TIER is that of a built-in homogenizer: recommended (by the results of `gradhomog suite`), for a need, or catalogue.
SUMMARY is that of the plugin's spec. --json also has the module, and whether GRADHOMOG_DISABLE disables it.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import importlib.util
import tomllib
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from gradhomog.cli._output import add_json, print_result
from gradhomog.table import aligned

if TYPE_CHECKING:
    from gradhomog.registry import Kind, PluginInfo

# Not imported from the registry, which takes as long as all other imports of the command line.
KINDS: tuple[Kind, ...] = ("homogenizers", "learners", "domains", "problems", "observers")

SUMMARY = "list installed plugins"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "kind", nargs="?", choices=KINDS, type=lambda text: f"{text.removesuffix('s')}s",
        help="list only this kind of plugin (default: all)",
    )  # fmt: skip
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from gradhomog.registry import installed

    infos = [info for kind in KINDS if args.kind in (None, kind) for info in installed().list(kind)]
    data = [{**dataclasses.asdict(info), "tier": tier(info), "summary": summary(info)} for info in infos]
    rows = [("KIND", "NAME", "DISTRIBUTION", "TIER", "SUMMARY")]
    for info, row in zip(infos, data, strict=True):
        name = f"{info.name} (disabled)" if info.disabled else info.name
        rows.append((info.kind[:-1], name, f"{info.distribution} {info.version}", row["tier"], row["summary"]))
    print_result(args, data, "\n".join(aligned(rows)))
    return 0


def tier(info: PluginInfo) -> str:
    """The tier of a built-in homogenizer: recommended, for a need, or catalogue; empty for other plugins."""
    if (info.kind, info.distribution) != ("homogenizers", "gradhomog"):
        return ""
    listed = tiers()
    if info.name in listed["recommended"]:
        return "recommended"
    return "for a need" if any(info.name in names for names in listed["for_a_need"].values()) else "catalogue"


@functools.cache
def tiers() -> dict[str, dict[str, str]]:
    """The tables of `tiers.toml`, beside the built-in homogenizers."""
    package = source("gradhomog_plugins")
    return tomllib.loads(package.with_name("tiers.toml").read_text(encoding="utf-8")) if package else {}


def summary(info: PluginInfo) -> str:
    """The summary of a plugin, read from the source of its module; empty if it is not written there as a constant."""
    path = source(info.module)
    if path is None or path.suffix != ".py":
        return ""
    if (table := path.with_name(f"{info.kind}.toml")).is_file():  # one module of several plugins
        return str(tomllib.loads(table.read_text(encoding="utf-8")).get(info.name, {}).get("summary", ""))
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the error is printed when the plugin is used
        return ""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Spec")]
    texts = [
        value for call in calls for value in (*call.args[1:2], *(k.value for k in call.keywords if k.arg == "summary"))
    ]
    constants = [node.value for node in texts if isinstance(node, ast.Constant)]
    return str(constants[0]) if len(constants) == 1 else ""


def source(module: str) -> Path | None:
    """The file of a module, found without importing it or the package that contains it."""
    package, *parts = module.partition(":")[0].split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for part in parts:
        folders = spec.submodule_search_locations if spec else None
        if folders is None:
            return None
        package = f"{package}.{part}"
        spec = PathFinder.find_spec(package, folders)
    return Path(spec.origin) if spec and spec.origin else None

"""`gradhomog show NAME`: print a plugin's options with ranges, its traits, limits, source and documentation."""

import argparse
from typing import Any

from gradhomog.cli._output import add_json, print_result
from gradhomog.cli.completion import complete_plugin_names
from gradhomog.cli.list_ import KINDS, tier

SUMMARY = "describe one plugin"


def add_arguments(command: argparse.ArgumentParser) -> None:
    name = command.add_argument("name", help="name of a plugin, or distribution:name")
    complete_plugin_names(name)
    command.add_argument(
        "--kind", choices=KINDS, help="the kind of the plugin, if plugins of several kinds have this name"
    )
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from gradhomog.registry import installed, options
    from gradhomog.registry.specs import DomainSpec, HomogenizerSpec

    registry = installed()
    kinds = [args.kind] if args.kind else [
        kind for kind in KINDS if any(args.name in (i.name, i.selector) for i in registry.list(kind))
    ]  # fmt: skip
    info, spec = registry.load(kinds[0] if kinds else "homogenizers", args.name)
    accepted = options.describe(spec)
    data: dict[str, Any] = {
        "kind": info.kind, "name": info.name, "distribution": info.distribution, "version": info.version,
        "module": info.module, "summary": spec.summary, "reference": spec.reference, "options": accepted,
    }  # fmt: skip
    if isinstance(spec, HomogenizerSpec):
        data |= {"tier": tier(info), "traits": sorted(spec.traits), "needs": sorted(spec.needs)}
        data |= {"max_tasks": spec.max_tasks}
    if isinstance(spec, DomainSpec):
        data |= {"variants": list(spec.variants)}
    data["documentation"] = options.documentation(spec)
    rows = {"distribution": f"{info.distribution} {info.version}", "reference": spec.reference or "none given"}
    if data.get("tier"):
        rows["tier"] = data["tier"]
    rows |= {name: ", ".join(data[name]) or "none" for name in ("traits", "needs", "variants") if name in data}
    if data.get("max_tasks"):
        rows["max tasks"] = data["max_tasks"]
    rows["options"] = "\n              ".join(accepted) or "none"
    lines = [f"{info}: {spec.summary}", *(f"{name:<12}  {text}" for name, text in rows.items())]
    print_result(args, data, "\n".join([*lines, "", data["documentation"] or "No documentation."]))
    return 0

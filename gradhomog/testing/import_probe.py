"""A program that imports the plugins of one distribution in a fresh interpreter and prints side effects as JSON."""

import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import re
import sys
from collections.abc import Callable
from typing import Any


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-")


def _requirements(distribution: str) -> tuple[set[str], set[str]]:
    """Return names of the required distributions, and of those that only extras require; empty if not installed."""
    needed, optional = set[str](), set[str]()
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for text in importlib.metadata.requires(distribution) or []:
            name = re.split(r"[^A-Za-z0-9._-]", text)[0]
            (optional if "extra ==" in text else needed).add(_normalized(name))
    return needed, optional - needed


def _optional_packages(distribution: str) -> set[str]:
    """Return the packages that only extras of the distribution require, directly or indirectly."""
    needed, optional = _requirements(distribution)
    required, pending = set[str](), needed | {"gradhomog", distribution.lower()}
    while pending:
        name = pending.pop()
        required.add(name)
        pending |= _requirements(name)[0] - required
    packages = importlib.metadata.packages_distributions()
    return {package for package, owners in packages.items() if {*map(_normalized, owners)} & optional - required}


def _state() -> dict[str, object]:
    import torch

    from gradhomog.testing.snapshots import global_generators

    generators = {f"{name}'s generator": value for name, value in global_generators().items()}
    device, precision = torch.get_default_device(), torch.get_float32_matmul_precision()
    return {**generators, "the default device": device, "the precision": precision}


def _side_effects(load: Callable[[], object], blocked: set[str]) -> str:
    """Import a plugin; return its failure without some packages, its changes of global state or its output."""
    from gradhomog.testing.snapshots import changed_names

    before, printed = _state(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            load()
        except BaseException as error:
            return f"its import fails without {', '.join(sorted(blocked)) or 'optional packages'}: {error}"
    if changed := changed_names(before, _state()):
        return "its import changes " + ", ".join(changed)
    return "its import prints " + repr(printed.getvalue()[:100]) if printed.getvalue().strip() else ""


def _load(registry: Any, kind: Any, selector: str, module: str) -> None:
    importlib.import_module(module)  # the registry would restore generators
    registry.load(kind, selector)


def main(kind: Any, distribution: str, path: list[str]) -> None:
    sys.path[:] = path
    from gradhomog.registry import Registry

    registry = Registry()
    infos = [info for info in registry.list(kind) if info.distribution == distribution]
    modules = {info.selector: info.module.partition(":")[0] for info in infos}
    early = {"torch", *modules.values()} & set(sys.modules)
    _state()  # imports torch

    blocked = _optional_packages(distribution)
    for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
        del sys.modules[name]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]  # an import of None raises
    own = {module.partition(".")[0] for module in modules.values()} - {"gradhomog"}
    base = set(sys.modules)
    failures = {}
    for selector, module in modules.items():
        if found := {"torch", module} & early:
            failures[selector] = f"listing the plugins imports {', '.join(sorted(found))}"
            continue
        for name in [name for name in sys.modules if name not in base and name.partition(".")[0] in own]:
            del sys.modules[name]  # modules that another plugin of the distribution imported must be imported again
        failures[selector] = _side_effects(functools.partial(_load, registry, kind, selector, module), blocked)
    json.dump(failures, sys.stdout)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

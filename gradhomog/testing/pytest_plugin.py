"""Pytest fixtures for plugin authors.

Pytest loads this module in every run with gradhomog installed, so it must not import torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gradhomog.registry import Kind, Registry


@pytest.fixture
def gradhomog_registry() -> Iterator[Registry]:
    """An empty `Registry`, used by the whole process until the test ends. Installed plugins are hidden.

    Built-in plugins are hidden too, until `gradhomog_install` adds one:
    `gradhomog_install("mine", "", plugin="pcgrad", target="gradhomog_plugins.pcgrad")`.
    """
    from gradhomog.registry import Registry, using

    with using(Registry((), disabled=())) as registry:
        yield registry


InstallDistribution = Callable[..., str]
"""Type of the value of the fixture `gradhomog_install`."""


@pytest.fixture
def gradhomog_install(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InstallDistribution]:
    """Install a distribution of one module and one plugin as pip would, in milliseconds, until the test ends.

    `gradhomog_install("fake-one", source)` writes the module `fake_one`, registers its homogenizer `fake_one` and
    returns the plugin's name. The plugin is added to `gradhomog_registry` if the test uses that fixture, else to the
    installed plugins, and to every `Registry()` made afterwards. A second call with the same name replaces the module,
    like a new release.

    Args:
        name: name of the distribution.
        source: source code of its module, indented or not.
        plugin: name of the plugin; by default the module's name.
        kind: a kind of plugin, such as `"homogenizers"`.
        target: object reference of the entry point; by default the module.
        version: version of the distribution.
        requires: requirements in its metadata, such as `"gradhomog>=0.1,<0.2"`.
        folder: folder in `tmp_path` that is put first on `sys.path`. A second folder can hold a second installation of
            the same distribution.
    """
    from gradhomog.registry import Registry, using

    modules: set[str] = set()
    with ExitStack() as cleanup:
        # A separate MonkeyPatch, because the test may undo that of the fixture `monkeypatch`.
        patch = cleanup.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "dont_write_bytecode", True)  # cached bytecode would be imported instead of a new module

        def install(
            name: str, source: str, *, plugin: str = "", kind: Kind = "homogenizers", target: str = "",
            version: str = "1.2", requires: Sequence[str] = (), folder: str = "site",
        ) -> str:  # fmt: skip
            module = name.replace("-", "_").replace(".", "_")
            site = tmp_path / folder
            info = site / f"{module}-{version}.dist-info"
            for previous in site.glob(f"{module}-*.dist-info"):
                shutil.rmtree(previous)
            info.mkdir(parents=True)
            (site / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
            metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {text}" for text in requires)]
            (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *metadata, ""]), encoding="utf-8")
            (info / "entry_points.txt").write_text(
                f"[gradhomog.{kind}]\n{plugin or module} = {target or module}\n", encoding="utf-8"
            )
            if str(site) not in sys.path:
                patch.syspath_prepend(str(site))
            if module not in modules:
                patch.delitem(sys.modules, module, raising=False)  # restored at the end if it existed
            sys.modules.pop(module, None)
            modules.add(module)
            importlib.invalidate_caches()
            if "gradhomog_registry" in request.fixturenames:
                request.getfixturevalue("gradhomog_registry").add(importlib.metadata.Distribution.at(info))
            else:
                cleanup.enter_context(using(Registry()))
            return plugin or module

        yield install
        for module in modules:
            sys.modules.pop(module, None)
    importlib.invalidate_caches()

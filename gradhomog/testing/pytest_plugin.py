"""Fixtures for plugin authors, loaded in every pytest run with gradhomog installed, without importing torch."""

from __future__ import annotations

import importlib
import importlib.metadata
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from gradhomog.registry import Kind, Registry


class Install(Protocol):
    """The value of the fixture `gradhomog_install`."""

    def __call__(
        self,
        name: str,
        source: str,
        *,
        plugin: str = "",
        kind: Kind = "homogenizers",
        target: str = "",
        version: str = "1.2",
        requires: Sequence[str] = (),
        folder: str = "site",
    ) -> str: ...


@pytest.fixture
def gradhomog_registry() -> Iterator[Registry]:
    """An empty `Registry`, which is the whole process's until the test ends; nothing that is installed is looked at.

    Every name is unknown, a built-in one too, until `gradhomog_install` brings it:
    `gradhomog_install("mine", "", plugin="pcgrad", target="gradhomog_plugins.pcgrad")`.
    """
    from gradhomog.registry import Registry, using

    with using(Registry((), disabled=())) as registry:
        yield registry


@pytest.fixture
def gradhomog_install(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Install]:
    """Install a distribution of one module and one plugin, as pip would leave it, in milliseconds; undone at the end.

    `gradhomog_install("fake-one", source)` writes the module `fake_one` and offers its homogenizer `fake_one` to the
    process (to `gradhomog_registry` if the test uses it, else beside what is installed) and to every `Registry()` made
    afterwards; it returns the name to use. Called again with a name, it replaces the module, as a new release would.

    Args:
        name: of the distribution.
        source: of its module, indented or not.
        plugin: name of the plugin; by default that of the module.
        kind: `"homogenizers"`, `"learners"`, `"domains"` or `"observers"`.
        target: what the entry point names; by default the module.
        version: of the distribution.
        requires: what its metadata requires, such as `"gradhomog>=0.1,<0.2"`.
        folder: in `tmp_path`, put first on `sys.path`: a second one shows a distribution that is installed twice.
    """
    from gradhomog.registry import Registry, using

    modules: set[str] = set()
    undone = ExitStack()
    patch = undone.enter_context(pytest.MonkeyPatch.context())  # the test may undo its own in the middle
    patch.setattr(sys, "dont_write_bytecode", True)  # a cached module would outlive its replacement

    def install(
        name: str,
        source: str,
        *,
        plugin: str = "",
        kind: Kind = "homogenizers",
        target: str = "",
        version: str = "1.2",
        requires: Sequence[str] = (),
        folder: str = "site",
    ) -> str:
        module = name.replace("-", "_").replace(".", "_")
        site = tmp_path / folder
        info = site / f"{module}-{version}.dist-info"
        for former in site.glob(f"{module}-*.dist-info"):
            shutil.rmtree(former)
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
            patch.delitem(sys.modules, module, raising=False)  # comes back if it was there
        sys.modules.pop(module, None)
        modules.add(module)
        importlib.invalidate_caches()
        if "gradhomog_registry" in request.fixturenames:
            request.getfixturevalue("gradhomog_registry").add(importlib.metadata.Distribution.at(info))
        else:
            undone.enter_context(using(Registry()))
        return plugin or module

    with undone:
        yield install
        for module in modules:
            sys.modules.pop(module, None)
    importlib.invalidate_caches()

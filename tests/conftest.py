"""Hypothesis profiles, and fake installed distributions to try the registry on."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", max_examples=40, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=400, deadline=None)  # new inputs at every run
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

Distribution = Callable[..., str]


def pytest_configure() -> None:
    points = importlib.metadata.entry_points(group="gradhomog.homogenizers")
    if not any(point.dist and point.dist.name == "gradhomog" for point in points):
        pytest.exit("gradhomog is not installed, so it has no plugins: run pip install -e .", returncode=4)


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Distribution]:
    """Install a distribution of one module and one plugin, as pip would leave it, for a `Registry()` made afterwards.

    `distribution("fake-one", source)` offers the homogenizer `fake_one` of the module `fake_one`; returns that name.
    Called again with a name, it replaces the module, as a mended release would.
    """
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a cached module would outlive its replacement
    modules: set[str] = set()

    def install(
        name: str,
        source: str,
        *,
        plugin: str = "",
        kind: str = "homogenizers",
        target: str = "",
        version: str = "1.2",
        folder: str = "site",
    ) -> str:
        module = name.replace("-", "_")
        site = tmp_path / folder
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (site / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(
            f"[gradhomog.{kind}]\n{plugin or module} = {target or module}\n", encoding="utf-8"
        )
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        sys.modules.pop(module, None)
        modules.add(module)
        importlib.invalidate_caches()
        return plugin or module

    yield install
    for module in modules:
        sys.modules.pop(module, None)

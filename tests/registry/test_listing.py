"""Listing plugins: every installed plugin once, with its distribution, and without an import."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import gradhomog
from gradhomog import OptionError, PluginLoadError, Registry, UnknownPluginError
from gradhomog.testing.pytest_plugin import InstallDistribution
from tests.registry.sources import FINE


def test_listing_and_finding_import_no_plugin(gradhomog_install: InstallDistribution) -> None:
    name = gradhomog_install("explodes", "raise RuntimeError('imported')")
    registry = Registry()
    assert name in registry.names("homogenizers")
    assert name in {info.name for info in registry.list("homogenizers")}
    assert registry.find("homogenizers", name).module == "explodes"
    assert "explodes" not in sys.modules
    with pytest.raises(PluginLoadError, match="RuntimeError: imported"):
        registry.load("homogenizers", name)


def test_listing_installed_plugins_imports_neither_torch_nor_plugins() -> None:
    code = (
        "import sys, gradhomog\n"
        "assert 'pcgrad' in gradhomog.available() and 'maml' in gradhomog.available('learners')\n"
        "heavy = {'torch', 'torchopt', 'numpy', 'gradhomog_plugins', 'gradhomog_adapters'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_list_is_sorted_and_contains_the_distribution_of_each_plugin(
    gradhomog_install: InstallDistribution,
) -> None:
    gradhomog_install("zz-late", FINE, version="2.0")
    gradhomog_install("aa-early", FINE)
    infos = Registry().list("homogenizers")
    assert [info.name for info in infos] == sorted(info.name for info in infos)
    late = infos[-1]
    assert (late.distribution, late.version, late.module, late.kind) == ("zz-late", "2.0", "zz_late", "homogenizers")
    assert late.selector == "zz-late:zz_late"
    assert str(late) == "homogenizer 'zz_late' of zz-late 2.0 (zz_late)"


def test_a_registry_can_be_created_from_entry_points() -> None:
    registry = Registry([EntryPoint("mine", "gradhomog_plugins.pcgrad", "gradhomog.homogenizers")])
    assert registry.names("homogenizers") == ("mine",)
    assert registry.names("learners") == ()
    assert registry.load("homogenizers", "mine")[1].summary


def test_of_a_distribution_twice_on_the_path_the_first_is_used(gradhomog_install: InstallDistribution) -> None:
    gradhomog_install("twice", "raise RuntimeError('the wrong one')", version="1.0", folder="later")
    name = gradhomog_install("twice", FINE, version="2.0", folder="earlier")  # first on the path
    registry = Registry()
    assert [info.version for info in registry.list("homogenizers") if info.name == name] == ["2.0"]
    assert registry.load("homogenizers", name)[0].version == "2.0"


def test_folders_without_metadata_after_a_broken_uninstall_do_not_stop_the_list(
    gradhomog_install: InstallDistribution, tmp_path: Any
) -> None:
    for name in ("left-one", "left-two"):
        gradhomog_install(name, FINE, plugin="left")
        (tmp_path / "site" / f"{name.replace('-', '_')}-1.2.dist-info" / "METADATA").unlink()
    assert "pcgrad" in Registry().names("homogenizers")
    assert "None" not in str([str(info) for info in Registry().list("homogenizers")])


@pytest.mark.parametrize("kind", ["homogenizer", "optimizers", ""])
def test_an_unknown_kind_raises_with_the_valid_kinds(kind: Any) -> None:
    for function in (Registry().list, Registry().names, gradhomog.available, lambda k: Registry().find(k, "pcgrad")):
        with pytest.raises(
            OptionError,
            match=r"`kind` must be one of 'homogenizers', 'learners', 'domains', 'problems', .*'papers'; got",
        ):
            function(kind)


def test_control_characters_of_a_name_do_not_reach_the_terminal() -> None:
    registry = Registry(
        [EntryPoint("red\x1b[31m", "zz\r\x07mod\u202eule", "gradhomog.homogenizers"),
         EntryPoint("größer", "zz", "gradhomog.homogenizers")]
    )  # fmt: skip
    red, german = sorted(registry.list("homogenizers"), key=lambda info: info.name == "größer")
    assert german.name == "größer"
    with pytest.raises(UnknownPluginError) as raised:
        registry.find("homogenizers", "redd")
    with pytest.raises(PluginLoadError) as load_error:
        registry.load("homogenizers", red.name)
    for text in (red.name, red.selector, red.module, str(red), str(raised.value), str(load_error.value)):
        assert text.isprintable()
    assert red.name == r"red\x1b[31m"

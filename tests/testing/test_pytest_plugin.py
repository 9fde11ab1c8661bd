"""The pytest fixtures of gradhomog: an empty registry and installed distributions."""

import importlib.metadata
import subprocess
import sys

import pytest
import torch  # before the tests: importing torch reads entry points

import gradhomog
from gradhomog import PluginLoadError, Registry, UnknownPluginError
from gradhomog.registry import installed

SOURCE = """
    import gradhomog, torch

    class Even(gradhomog.Homogenizer):
        "Weights of one."
        def mix(self, step):
            return torch.ones(step.tasks)

    @gradhomog.hookimpl
    def gradhomog_homogenizer():
        return gradhomog.HomogenizerSpec(factory=Even, summary="first release", reference="new")
"""

AUTHOR_SUITE = f'''
import importlib.metadata, sys
import pytest
import gradhomog

SOURCE = """{SOURCE}"""
PATH = list(sys.path)

def test_no_large_package_is_imported_by_the_pytest_plugin():
    assert not {{"torch", "numpy", "hypothesis", "torchopt"}} & set(sys.modules)

def test_together_with_installed_plugins(gradhomog_install):
    gradhomog_install("fake-one", SOURCE)
    assert {{"fake_one", "pcgrad"}} <= set(gradhomog.available())
    assert len(gradhomog.pipeline("fake_one + pcgrad")) == 2

def test_a_module_of_the_same_name_is_hidden_temporarily(gradhomog_install):
    import colorsys  # an example
    gradhomog.pipeline(gradhomog_install("colorsys", SOURCE))
    assert hasattr(sys.modules["colorsys"], "Even")
    sys.modules["hidden"] = colorsys

def test_everything_is_restored():
    assert sys.modules["colorsys"] is sys.modules.pop("hidden")
    assert sys.path == PATH
    assert "fake_one" not in sys.modules
    assert "fake_one" not in gradhomog.available()
    assert "pcgrad" in gradhomog.available()
    with pytest.raises(ModuleNotFoundError):
        import fake_one
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("fake-one")
'''


@pytest.mark.slow
def test_the_suite_of_a_plugin_author_can_install_distributions(tmp_path):
    (tmp_path / "test_author.py").write_text(AUTHOR_SUITE, encoding="utf-8")
    # A process, because the fixture changes what is installed, also after the last test.
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_author.py"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.splitlines()[-1].startswith("4 passed")


# -- the registry ----------------------------------------------------------------------------------------------------


def test_entry_points_of_the_environment_are_not_read(monkeypatch, request):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: pytest.fail("entry points were read"))
    registry = request.getfixturevalue("gradhomog_registry")
    assert installed() is registry
    assert [registry.list(kind) for kind in ("homogenizers", "learners", "domains")] == [()] * 3
    assert gradhomog.available() == ()
    with pytest.raises(UnknownPluginError):
        gradhomog.learner("maml", torch.nn.Identity(), torch.nn.Linear(1, 1))


def test_a_built_in_plugin_can_be_installed(gradhomog_registry, gradhomog_install):
    gradhomog_install("mine", "", plugin="pcgrad", target="gradhomog_plugins.pcgrad")
    gradhomog_install("my-learner", "", plugin="maml", target="gradhomog_adapters.maml", kind="learners")
    assert (gradhomog.available(), gradhomog.available("learners")) == (("pcgrad",), ("maml",))
    assert type(next(iter(gradhomog.pipeline("mine:pcgrad")))).__name__ == "PCGrad"


@pytest.mark.parametrize("first", ["gradhomog_registry", "gradhomog_install"])
def test_neither_the_order_of_the_fixtures_nor_gradhomog_disable_matters(request, monkeypatch, first):
    monkeypatch.setenv("GRADHOMOG_DISABLE", "fake_one")
    request.getfixturevalue(first)
    registry, install = (request.getfixturevalue(name) for name in ("gradhomog_registry", "gradhomog_install"))
    install("fake-one", SOURCE)
    assert registry.names("homogenizers") == gradhomog.available() == ("fake_one",)


# -- installing ------------------------------------------------------------------------------------------------------


def test_an_installed_distribution_has_metadata_and_entry_points(gradhomog_install):
    gradhomog_install("Fake.One-b", SOURCE, plugin="even", version="3.1", requires=["gradhomog>=0.0.1", "torch"])
    found = importlib.metadata.distribution("Fake.One-b")
    assert (found.version, found.requires) == ("3.1", ["gradhomog>=0.0.1", "torch"])
    for registry in (installed(), Registry()):
        info, spec = registry.load("homogenizers", "even")
        assert str(info) == "homogenizer 'even' of Fake.One-b 3.1 (Fake_One_b)"
        assert spec.summary == "first release"


@pytest.mark.slow_after_first
@pytest.mark.parametrize("alone", [True, False])
def test_a_second_installation_replaces_the_first_even_if_it_was_used(request, gradhomog_install, alone):
    if alone:
        request.getfixturevalue("gradhomog_registry")
    for version, summary in (("1.0", "first release"), ("1.0", "same number"), ("2.0", "second release")):
        gradhomog_install("fake-one", SOURCE.replace("first release", summary), version=version)
        info, spec = installed().load("homogenizers", "fake_one")
        assert (info.version, spec.summary) == (version, summary)
    gradhomog_install("fake-one", "", version="3.0", requires=["gradhomog>=99"])
    with pytest.raises(PluginLoadError, match=r"of fake-one 3\.0 .* requires gradhomog >=99"):
        gradhomog.pipeline("fake_one")

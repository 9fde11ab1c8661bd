"""Resolving names of plugins: unknown names, names in several distributions, and disabled names."""

from __future__ import annotations

import pytest

import gradhomog
from gradhomog import AmbiguousPluginError, DisabledPluginError, Registry, UnknownPluginError
from gradhomog.testing.pytest_plugin import InstallDistribution
from tests.registry.sources import FINE


def test_an_unknown_name_raises_with_a_similar_name_and_the_installed_names() -> None:
    with pytest.raises(UnknownPluginError) as raised:
        Registry().find("homogenizers", "pcgard")
    message = str(raised.value)
    assert message.startswith("unknown homogenizer 'pcgard'. Did you mean 'pcgrad'? Installed: ")
    assert "mgda" in message


def test_a_name_without_similar_names_gets_no_suggestion() -> None:
    with pytest.raises(UnknownPluginError) as raised:
        Registry().find("learners", "qqqqqq")
    assert str(raised.value).startswith("unknown learner 'qqqqqq'. Installed: ")


def test_a_name_of_another_kind_raises_with_that_kind() -> None:
    with pytest.raises(UnknownPluginError, match=r"unknown learner 'pcgrad'\. It is the name of a homogenizer\."):
        Registry().find("learners", "pcgrad")


def test_a_name_in_two_distributions_requires_the_distribution(gradhomog_install: InstallDistribution) -> None:
    gradhomog_install("dist-one", FINE, plugin="twin", version="1.5")
    gradhomog_install("dist-two", FINE.replace("fine", "finer"), plugin="twin", version="3.0")
    registry = Registry()
    with pytest.raises(AmbiguousPluginError) as raised:
        registry.load("homogenizers", "twin")
    assert str(raised.value) == (
        "homogenizer 'twin' exists in several distributions: dist-one 1.5 and dist-two 3.0. "
        "Write 'dist-one:twin' or 'dist-two:twin'."
    )
    assert registry.load("homogenizers", "dist-one:twin")[1].summary == "fine"
    assert registry.load("homogenizers", "dist-two:twin")[1].summary == "finer"
    twins = [name for name in registry.names("homogenizers") if "twin" in name]
    assert twins == ["dist-one:twin", "dist-two:twin"]


def test_a_third_party_plugin_cannot_replace_a_built_in_plugin(
    gradhomog_install: InstallDistribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradhomog_install("stranger", FINE, plugin="pcgrad")
    registry = Registry()
    with pytest.raises(AmbiguousPluginError, match="gradhomog:pcgrad") as raised:
        gradhomog.pipeline("pcgrad", registry=registry)
    assert f"gradhomog {gradhomog.__version__} and stranger 1.2" in str(raised.value)
    assert type(next(iter(gradhomog.pipeline("gradhomog:pcgrad", registry=registry)))).__name__ == "PCGrad"
    assert type(next(iter(gradhomog.pipeline("stranger:pcgrad", registry=registry)))).__name__ == "Fine"
    monkeypatch.setenv("GRADHOMOG_DISABLE", "stranger:pcgrad")
    assert Registry().find("homogenizers", "pcgrad").distribution == "gradhomog"


@pytest.mark.parametrize("text", ["pcgrad", "gradhomog:pcgrad", " mgda , pcgrad,"])
def test_a_disabled_plugin_is_listed_but_cannot_be_named_or_loaded(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GRADHOMOG_DISABLE", text)
    registry = Registry()
    assert "pcgrad" not in registry.names("homogenizers")
    assert [info.disabled for info in registry.list("homogenizers") if info.name == "pcgrad"] == [True]
    for selector in ("pcgrad", "gradhomog:pcgrad"):
        with pytest.raises(
            DisabledPluginError, match=r"is disabled by GRADHOMOG_DISABLE=.*pcgrad.*Remove it"
        ) as raised:
            registry.load("homogenizers", selector)
        assert str(raised.value).startswith(f"homogenizer 'pcgrad' of gradhomog {gradhomog.__version__}")


def test_disabling_by_distribution_keeps_plugins_of_that_name_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADHOMOG_DISABLE", "stranger:pcgrad,gradhomog")
    assert "pcgrad" in Registry().names("homogenizers")

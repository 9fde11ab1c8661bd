"""The registry: listing without imports, names, loading of good and broken plugins, creating objects."""

import re
import sys
from importlib.metadata import EntryPoint
from typing import Any, cast

import pytest
import torch

import gradhomog
from gradhomog import (
    AmbiguousPluginError,
    DisabledPluginError,
    HomogenizerSpec,
    OptionError,
    PluginLoadError,
    PluginRunError,
    Registry,
    UnknownPluginError,
)
from gradhomog.testing.pytest_plugin import InstallDistribution
from tests.registry.sources import FINE, hook


def test_listing_and_finding_import_no_plugin(gradhomog_install: InstallDistribution) -> None:
    name = gradhomog_install("explodes", "raise RuntimeError('imported')")
    registry = Registry()
    assert name in registry.names("homogenizers")
    assert name in {info.name for info in registry.list("homogenizers")}
    assert registry.find("homogenizers", name).module == "explodes"
    assert "explodes" not in sys.modules
    with pytest.raises(PluginLoadError, match="RuntimeError: imported"):
        registry.load("homogenizers", name)


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
            match=r"`kind` must be one of 'homogenizers', 'learners', 'domains', 'problems', 'observers'.*; got",
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


def test_an_unknown_name_raises_with_a_similar_name_and_the_installed_names() -> None:
    with pytest.raises(UnknownPluginError) as raised:
        Registry().find("homogenizers", "pcgard")
    message = str(raised.value)
    assert message.startswith("unknown homogenizer 'pcgard'. Did you mean 'pcgrad'? Installed: ")
    assert "mgda" in message


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


def test_names_that_disable_nothing_are_reported_with_suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADHOMOG_DISABLE", "stranger:pcgrad,pcgrd, mgda")
    registry = Registry()
    with pytest.warns(UserWarning, match="GRADHOMOG_DISABLE") as warned:
        names = registry.names("homogenizers")
    assert [str(each.message) for each in warned] == [
        "GRADHOMOG_DISABLE: no installed plugin is named 'pcgrd'. Did you mean 'pcgrad'?",
        "GRADHOMOG_DISABLE: no installed plugin is named 'stranger:pcgrad'. Did you mean 'gradhomog:pcgrad'?",
    ]
    assert "pcgrad" in names
    assert "mgda" not in names
    registry.names("learners")  # reported once


BROKEN = {
    "import fails": (
        "import no_such_module",
        ["cannot be imported: ModuleNotFoundError", "no_such_module"],
        ImportError,
    ),
    "script without a guard": ("raise SystemExit(3)", ["cannot be imported: SystemExit: 3"], SystemExit),
    "hook not marked": (
        FINE.replace("@hookimpl", ""),
        ["has no hook `gradhomog_homogenizer`", "mark it with @gradhomog.hookimpl"],
        None,
    ),
    "misspelled hook": (
        FINE.replace("def gradhomog_homogenizer", "def gradhomog_homogeniser"),
        ["unknown hook 'gradhomog_homogeniser'", "Did you mean 'gradhomog_homogenizer'?"],
        Exception,
    ),
    "hook with an argument": (
        hook("return None", "gradhomog_homogenizer(size)"),
        ["has an invalid hook", "gradhomog_homogenizer(size)", "'size'"],
        Exception,
    ),
    "hook raises": (hook("return 1 / 0"), ["raised in `gradhomog_homogenizer`: ZeroDivisionError"], ZeroDivisionError),
    "hook exits": (hook("raise SystemExit(2)"), ["raised in `gradhomog_homogenizer`: SystemExit"], SystemExit),
    "hook returns another spec": (
        hook("return LearnerSpec(factory=dict, summary='')"),
        ["must return a HomogenizerSpec from `gradhomog_homogenizer`; got LearnerSpec"],
        None,
    ),
    "unknown trait": (
        FINE.replace("needs=", "traits={'linear'}, needs="),
        ["unknown trait 'linear'; the valid ones are differentiable,"],
        PluginLoadError,
    ),
    "unknown need": (
        FINE.replace("{'losses'}", "{'hessian'}").replace('{"losses"}', '{"hessian"}'),
        ["unknown statistic in `needs` 'hessian'; the valid ones are", "gramian"],
        PluginLoadError,
    ),
    "factory not callable": (
        hook("return HomogenizerSpec(factory='Fine', summary='')"),
        ["must have a callable `factory` with a Python signature; got 'Fine'"],
        TypeError,
    ),
}


@pytest.mark.parametrize(("source", "words", "cause"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_plugin_raises_with_its_name_and_does_not_affect_others(
    gradhomog_install: InstallDistribution, source: str, words: list[str], cause: type[BaseException] | None
) -> None:
    gradhomog_install("zz-broken", source, plugin="broken", version="0.3")
    fine = gradhomog_install("zz-fine", FINE)
    registry = Registry()
    before = registry.manager.get_plugins()
    for _ in range(2):  # the second attempt must not depend on the first
        with pytest.raises(PluginLoadError) as raised:
            registry.load("homogenizers", "broken")
        message = str(raised.value)
        assert message.startswith("homogenizer 'broken' of zz-broken 0.3 (zz_broken) ")
        advice = (
            "Reinstall zz-broken with its dependencies"
            if "ModuleNotFound" in message
            else "Report it to the authors of zz-broken"
        )
        assert f" (gradhomog {gradhomog.__version__}). {advice}" in message
        assert message.endswith("or remove 'broken'.")
        for word in words:
            assert word in message
        if cause is None:
            assert raised.value.__cause__ is None
        else:
            assert isinstance(raised.value.__cause__, cause)
        assert registry.manager.get_plugins() == before
    assert len(gradhomog.pipeline(f"{fine} + pcgrad", registry=registry)) == 2
    gradhomog_install("zz-broken", FINE, plugin="broken", version="0.3")  # a corrected version
    assert registry.load("homogenizers", "broken")[1].summary == "fine"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("zz_target:Fine", "must have a module as its entry point; got a type"),
        ("zz_target:number", "must have a module as its entry point; got a int"),
        ("zz_target:absent", "cannot be imported: AttributeError: module 'zz_target' has no attribute 'absent'"),
        ("zz_elsewhere", "cannot be imported: ModuleNotFoundError: No module named 'zz_elsewhere'"),
    ],
)
def test_an_entry_point_must_name_a_module(gradhomog_install: InstallDistribution, target: str, words: str) -> None:
    name = gradhomog_install("zz-target", FINE + "\nnumber = 3\n", target=target)
    with pytest.raises(PluginLoadError) as raised:
        Registry().load("homogenizers", name)
    assert f"homogenizer 'zz_target' of zz-target 1.2 ({target}) {words}" in str(raised.value)


def test_a_plugin_is_imported_once_and_its_hook_called_once(gradhomog_install: InstallDistribution) -> None:
    counting = FINE.replace("    return HomogenizerSpec", "    calls.append(1)\n    return HomogenizerSpec")
    name = gradhomog_install("counts", counting + "\ncalls = []\n")
    registry = Registry()
    first = registry.load("homogenizers", name)
    assert registry.load("homogenizers", f"counts:{name}") == first
    assert sys.modules["counts"].calls == [1]


def test_one_module_may_offer_plugins_of_two_kinds(gradhomog_install: InstallDistribution, tmp_path: Any) -> None:
    source = FINE + "\n@hookimpl\ndef gradhomog_learner():\n    return LearnerSpec(factory=object, summary='both')\n"
    name = gradhomog_install("both", source)
    points = tmp_path / "site" / "both-1.2.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "[gradhomog.learners]\nboth = both\n")
    registry = Registry()
    assert registry.load("homogenizers", name)[1].summary == "fine"
    assert registry.load("learners", name)[1].summary == "both"


def test_a_factory_that_fails_is_named_and_its_error_chained(gradhomog_install: InstallDistribution) -> None:
    name = gradhomog_install("fails", FINE.replace("self.strength = strength", "raise KeyError('weights')"))
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline(name, registry=Registry())
    where = rf"\(.*fails\.py:5; gradhomog {re.escape(gradhomog.__version__)}\)"
    assert re.fullmatch(
        rf"the factory of homogenizer 'fails' of fails 1\.2 \(fails\) raised KeyError: 'weights' {where}\. "
        r"Report it to the authors of fails, or remove 'fails'\.",
        str(raised.value),
    )
    assert isinstance(raised.value.__cause__, KeyError)


def test_an_option_error_of_a_factory_keeps_its_message(gradhomog_install: InstallDistribution) -> None:
    statement = "raise OptionError(f'strict: `strength` must be positive; got {strength}.')"
    name = gradhomog_install("strict", FINE.replace("self.strength = strength", statement))
    with pytest.raises(OptionError, match=r"^strict: `strength` must be positive; got -1\.$"):
        gradhomog.pipeline(f"{name}(strength=-1)", registry=Registry())


def test_the_factory_of_a_homogenizer_plugin_must_return_a_homogenizer(gradhomog_install: InstallDistribution) -> None:
    name = gradhomog_install("odd", FINE.replace("factory=Fine", "factory=object"))
    with pytest.raises(PluginRunError, match=r"of odd 1\.2 \(odd\) must return a gradhomog\.Homogenizer; got object"):
        gradhomog.pipeline(name, registry=Registry())


def test_the_factory_of_a_learner_plugin_must_return_a_learner(gradhomog_install: InstallDistribution) -> None:
    factory = "lambda encoder, head, homogenizers, rate=1.0: encoder"
    source = hook(f"return LearnerSpec(factory={factory}, summary='')", "gradhomog_learner()")
    name, module = gradhomog_install("odd-learner", source, kind="learners"), torch.nn.Identity()
    with pytest.raises(PluginRunError, match=r"of odd-learner 1\.2.*must return a gradhomog\.Learner; got Identity"):
        gradhomog.learner(f"{name}(rate=2)", module, module, registry=Registry())
    with pytest.raises(OptionError, match=r"odd_learner has no option 'rat'. Did you mean 'rate'"):
        gradhomog.learner(name, module, module, rat=2, registry=Registry())


def test_the_factory_of_a_domain_plugin_must_return_a_domain(gradhomog_install: InstallDistribution) -> None:
    factory = "lambda variant, size, noise=0.0: variant"
    source = hook(f"return DomainSpec(factory={factory}, summary='')", "gradhomog_domain()")
    name = gradhomog_install("odd-domain", source, kind="domains")
    with pytest.raises(PluginRunError, match=r"of odd-domain 1\.2.*must return a gradhomog\.Domain; got str"):
        gradhomog.domain(f"odd-domain:{name}:greek(noise=1)", registry=Registry())


@pytest.mark.parametrize("value", [5, {"pcgrad": {}}, [("pcgrad", None)], [("pcgrad", {}, 1)], [3], ("pcgrad", {})])
def test_an_invalid_pipeline_argument_raises(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^(a pipeline|an entry of a pipeline) must be .* Homogenizer objects?; got"):
        gradhomog.pipeline(value)


def test_a_loaded_plugin_can_wrap_the_creation_of_objects(gradhomog_install: InstallDistribution) -> None:
    wrapper = """
@hookimpl(wrapper=True)
def gradhomog_make(spec, arguments, options):
    made = yield
    made.seen = (spec.summary, arguments, options)
    return made
"""
    name = gradhomog_install("wraps", FINE + wrapper)
    registry = Registry()
    [before] = gradhomog.pipeline("pcgrad", registry=registry)
    [own, other] = gradhomog.pipeline(f"{name}(strength=3) + pcgrad(seed=1)", registry=registry)
    assert not hasattr(before, "seen")  # the wrapper is loaded only when it is named
    assert cast(Any, own).seen == ("fine", (), {"strength": 3})
    assert cast(Any, other).seen[1:] == ((), {"seed": 1})
    made = registry.make("homogenizers", "pcgrad", {"seed": 2})
    assert isinstance(made[1], HomogenizerSpec)
    assert made[2].seen[2] == {"seed": 2}

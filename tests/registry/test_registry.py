"""Plugins by name: what is listed, what is loaded, and what each broken distribution is answered with."""

from __future__ import annotations

import re
import subprocess
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
from gradhomog.testing.pytest_plugin import Install

IMPORTS = "from gradhomog import DomainSpec, Homogenizer, HomogenizerSpec, LearnerSpec, OptionError, hookimpl\n"

FINE = (
    IMPORTS
    + """
class Fine(Homogenizer):
    def __init__(self, strength: float = 1.0) -> None:
        self.strength = strength
    def mix(self, evidence):
        return evidence.losses * 0 + self.strength

@hookimpl
def gradhomog_homogenizer():
    return HomogenizerSpec(factory=Fine, summary="fine", needs={"losses"})
"""
)


def hook(body: str, signature: str = "gradhomog_homogenizer()") -> str:
    """A module with one marked hook."""
    return f"{IMPORTS}\n@hookimpl\ndef {signature}:\n    {body}\n"


# -- listing ---------------------------------------------------------------------------------------------------------


def test_listing_and_finding_import_no_plugin(gradhomog_install: Install) -> None:
    name = gradhomog_install("explodes", "raise RuntimeError('imported')")
    registry = Registry()
    assert name in registry.names("homogenizers")
    assert name in {info.name for info in registry.list("homogenizers")}
    assert registry.find("homogenizers", name).module == "explodes"
    assert "explodes" not in sys.modules
    with pytest.raises(PluginLoadError, match="RuntimeError: imported"):
        registry.load("homogenizers", name)


def test_listing_what_is_installed_imports_neither_torch_nor_plugins() -> None:
    code = (
        "import sys, gradhomog\n"
        "assert 'pcgrad' in gradhomog.available() and 'maml' in gradhomog.available('learners')\n"
        "heavy = {'torch', 'torchopt', 'numpy', 'gradhomog_plugins', 'gradhomog_adapters'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_list_is_sorted_and_says_where_each_plugin_comes_from(gradhomog_install: Install) -> None:
    gradhomog_install("zz-late", FINE, version="2.0")
    gradhomog_install("aa-early", FINE)
    infos = Registry().list("homogenizers")
    assert [info.name for info in infos] == sorted(info.name for info in infos)
    late = infos[-1]
    assert (late.distribution, late.version, late.module, late.kind) == ("zz-late", "2.0", "zz_late", "homogenizers")
    assert late.selector == "zz-late:zz_late"
    assert str(late) == "homogenizer 'zz_late' of zz-late 2.0 (zz_late)"


def test_a_registry_can_be_given_its_candidates() -> None:
    registry = Registry([EntryPoint("mine", "gradhomog_plugins.pcgrad", "gradhomog.homogenizers")])
    assert registry.names("homogenizers") == ("mine",)
    assert registry.names("learners") == ()
    assert registry.load("homogenizers", "mine")[1].summary


def test_one_distribution_twice_on_the_path_is_one_plugin_and_the_first_counts(gradhomog_install: Install) -> None:
    gradhomog_install("twice", "raise RuntimeError('the wrong one')", version="1.0", folder="later")
    name = gradhomog_install("twice", FINE, version="2.0", folder="earlier")  # put before what was there
    registry = Registry()
    assert [info.version for info in registry.list("homogenizers") if info.name == name] == ["2.0"]
    assert registry.load("homogenizers", name)[0].version == "2.0"


def test_what_a_broken_uninstall_leaves_behind_does_not_stop_the_list(
    gradhomog_install: Install, tmp_path: Any
) -> None:
    for name in ("left-one", "left-two"):
        gradhomog_install(name, FINE, plugin="left")
        (tmp_path / "site" / f"{name.replace('-', '_')}-1.2.dist-info" / "METADATA").unlink()
    assert "pcgrad" in Registry().names("homogenizers")
    assert "None" not in str([str(info) for info in Registry().list("homogenizers")])


@pytest.mark.parametrize("kind", ["homogenizer", "optimizers", ""])
def test_an_unknown_kind_is_answered_with_the_kinds(kind: Any) -> None:
    for ask in (Registry().list, Registry().names, gradhomog.available, lambda k: Registry().find(k, "pcgrad")):
        with pytest.raises(OptionError, match=r"`kind` must be one of 'homogenizers', 'learners', 'domains'; got"):
            ask(kind)


# -- names -----------------------------------------------------------------------------------------------------------


def test_an_unknown_name_is_answered_with_a_near_one_and_the_installed_ones() -> None:
    with pytest.raises(UnknownPluginError) as raised:
        Registry().find("homogenizers", "pcgard")
    message = str(raised.value)
    assert message.startswith("no homogenizer is called 'pcgard'. Did you mean 'pcgrad'? Installed: ")
    assert "mgda" in message


def test_a_name_near_to_none_gets_no_suggestion() -> None:
    with pytest.raises(UnknownPluginError) as raised:
        Registry().find("learners", "qqqqqq")
    assert str(raised.value).startswith("no learner is called 'qqqqqq'. Installed: ")


def test_the_names_of_another_kind_are_not_meant() -> None:
    with pytest.raises(UnknownPluginError, match="no learner is called 'pcgrad'"):
        Registry().find("learners", "pcgrad")


def test_a_name_offered_twice_must_be_chosen_by_distribution(gradhomog_install: Install) -> None:
    gradhomog_install("dist-one", FINE, plugin="twin", version="1.5")
    gradhomog_install("dist-two", FINE.replace("fine", "finer"), plugin="twin", version="3.0")
    registry = Registry()
    with pytest.raises(AmbiguousPluginError) as raised:
        registry.load("homogenizers", "twin")
    assert str(raised.value) == (
        "homogenizer 'twin' is offered by dist-one 1.5 and dist-two 3.0. "
        "Write 'dist-one:twin' or 'dist-two:twin' to choose one."
    )
    assert registry.load("homogenizers", "dist-one:twin")[1].summary == "fine"
    assert registry.load("homogenizers", "dist-two:twin")[1].summary == "finer"
    offered = [name for name in registry.names("homogenizers") if "twin" in name]
    assert offered == ["dist-one:twin", "dist-two:twin"]


def test_a_stranger_cannot_take_the_name_of_a_built_in_plugin(
    gradhomog_install: Install, monkeypatch: pytest.MonkeyPatch
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
def test_a_disabled_plugin_is_listed_but_neither_offered_nor_loaded(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GRADHOMOG_DISABLE", text)
    registry = Registry()
    assert "pcgrad" not in registry.names("homogenizers")
    assert [info.disabled for info in registry.list("homogenizers") if info.name == "pcgrad"] == [True]
    for selector in ("pcgrad", "gradhomog:pcgrad"):
        with pytest.raises(
            DisabledPluginError, match=r"is disabled by GRADHOMOG_DISABLE=.*pcgrad.*Take it out"
        ) as raised:
            registry.load("homogenizers", selector)
        assert str(raised.value).startswith(f"homogenizer 'pcgrad' of gradhomog {gradhomog.__version__}")


def test_disabling_by_distribution_leaves_plugins_of_that_name_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADHOMOG_DISABLE", "stranger:pcgrad,gradhomog")
    assert "pcgrad" in Registry().names("homogenizers")


# -- loading ---------------------------------------------------------------------------------------------------------

BROKEN = {
    "import fails": ("import no_such_module", ["did not load: ModuleNotFoundError", "no_such_module"], ImportError),
    "syntax": ("def (", ["did not load: SyntaxError"], SyntaxError),
    "script without a guard": ("raise SystemExit(3)", ["did not load: SystemExit: 3"], SystemExit),
    "no hook": ("", ["has no hook `gradhomog_homogenizer`", "mark it with @gradhomog.hookimpl"], None),
    "hook not marked": (
        FINE.replace("@hookimpl", ""),
        ["has no hook `gradhomog_homogenizer`", "mark it with @gradhomog.hookimpl"],
        None,
    ),
    "hook of another kind": (
        hook("return LearnerSpec(factory=dict, summary='')", "gradhomog_learner()"),
        ["has no hook `gradhomog_homogenizer`"],
        None,
    ),
    "hook misspelt": (
        FINE.replace("def gradhomog_homogenizer", "def gradhomog_homogeniser"),
        ["unknown hook 'gradhomog_homogeniser'", "Did you mean 'gradhomog_homogenizer'?"],
        Exception,
    ),
    "second hook misspelt": (
        FINE + "\n@hookimpl\ndef gradhomog_observer(config): pass\n",
        ["unknown hook 'gradhomog_observer'", "Did you mean 'gradhomog_observers'?"],
        Exception,
    ),
    "hook with an argument": (
        hook("return None", "gradhomog_homogenizer(size)"),
        ["a hook that does not fit", "gradhomog_homogenizer(size)", "'size'"],
        Exception,
    ),
    "hook raises": (hook("return 1 / 0"), ["raised in `gradhomog_homogenizer`: ZeroDivisionError"], ZeroDivisionError),
    "hook returns nothing": (hook("pass"), ["must return a HomogenizerSpec", "got NoneType"], None),
    "hook returns another spec": (
        hook("return LearnerSpec(factory=dict, summary='')"),
        ["must return a HomogenizerSpec from `gradhomog_homogenizer`; got LearnerSpec"],
        None,
    ),
    "unknown trait": (
        FINE.replace("needs=", "traits={'linear'}, needs="),
        ["unknown trait 'linear'; known: differentiable,"],
        PluginLoadError,
    ),
    "unknown need": (
        FINE.replace("{'losses'}", "{'hessian'}").replace('{"losses"}', '{"hessian"}'),
        ["unknown statistic in `needs` 'hessian'; known:", "gramian"],
        PluginLoadError,
    ),
    "factory not callable": (
        hook("return HomogenizerSpec(factory='Fine', summary='')"),
        ["must have a callable `factory` with a Python signature; got 'Fine'"],
        TypeError,
    ),
    "factory without a signature": (
        hook("return HomogenizerSpec(factory=dict, summary='')"),
        ["must have a callable `factory` with a Python signature; got <class 'dict'>"],
        ValueError,
    ),
}


@pytest.mark.parametrize(("source", "words", "cause"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_plugin_is_refused_by_name_and_harms_nobody(
    gradhomog_install: Install, source: str, words: list[str], cause: type[BaseException] | None
) -> None:
    gradhomog_install("zz-broken", source, plugin="broken", version="0.3")
    fine = gradhomog_install("zz-fine", FINE)
    registry = Registry()
    before = registry.manager.get_plugins()
    for _ in range(2):  # the second attempt must not meet the remains of the first
        with pytest.raises(PluginLoadError) as raised:
            registry.load("homogenizers", "broken")
        message = str(raised.value)
        assert message.startswith("homogenizer 'broken' of zz-broken 0.3 (zz_broken) ")
        advice = (
            "Reinstall zz-broken with all" if "ModuleNotFound" in message else "Report it to the authors of zz-broken"
        )
        assert f" (gradhomog {gradhomog.__version__}). {advice}" in message
        assert message.endswith("or leave 'broken' out.")
        for word in words:
            assert word in message
        if cause is None:
            assert raised.value.__cause__ is None
        else:
            assert isinstance(raised.value.__cause__, cause)
        assert registry.manager.get_plugins() == before
    assert len(gradhomog.pipeline(f"{fine} + pcgrad", registry=registry)) == 2
    gradhomog_install("zz-broken", FINE, plugin="broken", version="0.3")  # the author mends it
    assert registry.load("homogenizers", "broken")[1].summary == "fine"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("zz_target:Fine", "must be a module; its entry point gives a type"),
        ("zz_target:number", "must be a module; its entry point gives a int"),
        ("zz_target:absent", "did not load: AttributeError: module 'zz_target' has no attribute 'absent'"),
        ("zz_elsewhere", "did not load: ModuleNotFoundError: No module named 'zz_elsewhere'"),
    ],
)
def test_an_entry_point_must_name_a_module(gradhomog_install: Install, target: str, words: str) -> None:
    name = gradhomog_install("zz-target", FINE + "\nnumber = 3\n", target=target)
    with pytest.raises(PluginLoadError) as raised:
        Registry().load("homogenizers", name)
    assert f"homogenizer 'zz_target' of zz-target 1.2 ({target}) {words}" in str(raised.value)


def test_a_plugin_is_imported_once_and_its_hook_called_once(gradhomog_install: Install) -> None:
    counting = FINE.replace("    return HomogenizerSpec", "    calls.append(1)\n    return HomogenizerSpec")
    name = gradhomog_install("counts", counting + "\ncalls = []\n")
    registry = Registry()
    first = registry.load("homogenizers", name)
    assert registry.load("homogenizers", f"counts:{name}") == first
    assert sys.modules["counts"].calls == [1]


def test_one_module_may_offer_plugins_of_two_kinds(gradhomog_install: Install, tmp_path: Any) -> None:
    source = FINE + "\n@hookimpl\ndef gradhomog_learner():\n    return LearnerSpec(factory=object, summary='both')\n"
    name = gradhomog_install("both", source)
    points = tmp_path / "site" / "both-1.2.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "[gradhomog.learners]\nboth = both\n")
    registry = Registry()
    assert registry.load("homogenizers", name)[1].summary == "fine"
    assert registry.load("learners", name)[1].summary == "both"


# -- options ---------------------------------------------------------------------------------------------------------

OPTIONS = (
    "from __future__ import annotations\nfrom collections.abc import Mapping, Sequence\nfrom typing import Literal\n"
    + IMPORTS
    + """
class Choosy(Homogenizer):
    def __init__(
        self,
        needed: int,
        count: int = 1,
        rate: float = 0.5,
        flag: bool = False,
        label: str = "x",
        mode: Literal["fast", "slow"] = "fast",
        many: list[float] = [],
        some: Sequence[int] = (),
        bare: list = [],
        pair: tuple[int, str] = (1, "a"),
        table: dict[str, int] = {},
        lookup: Mapping[str, float] = {},
        plain: Mapping = {},
        maybe: int | None = None,
        weights: Sequence[float] | Literal["random"] | None = None,
        anything=None,
    ) -> None:
        self.given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}

@hookimpl
def gradhomog_homogenizer():
    return HomogenizerSpec(factory=Choosy, summary="choosy")
"""
)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("count", 3),
        ("rate", 0.25),
        ("rate", 2),
        ("flag", True),
        ("label", ""),
        ("mode", "slow"),
        ("many", [1, 2.5]),
        ("many", []),
        ("some", [1, 2]),
        ("bare", ["x", 1]),
        ("pair", [2, "b"]),
        ("table", {"a": 1}),
        ("lookup", {"*": 0.5, "a": 1}),
        ("plain", {"a": [1]}),
        ("maybe", None),
        ("maybe", 2),
        ("weights", "random"),
        ("weights", None),
        ("weights", [1, 2.0]),
        ("anything", {"a": [True]}),
    ],
)
def test_a_well_typed_option_reaches_the_factory(gradhomog_install: Install, option: str, value: object) -> None:
    name = gradhomog_install("choosy", OPTIONS)
    [made] = gradhomog.pipeline([(name, {"needed": 0, option: value})], registry=Registry())
    assert cast(Any, made).given[option] == value


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("count", 1.5, "an integer"),
        ("count", True, "an integer"),
        ("count", "3", "an integer"),
        ("count", 2**63, "an integer of at most 64 bits"),
        ("rate", 2**1024, "a number of at most 64 bits"),
        ("rate", "0.5", "a number"),
        ("rate", False, "a number"),
        ("rate", None, "a number"),
        ("flag", 1, "true or false"),
        ("flag", "true", "true or false"),
        ("label", 1, "a text"),
        ("mode", "medium", 'one of "fast", "slow"'),
        ("mode", None, 'one of "fast", "slow"'),
        ("many", 1.0, "a list (a number each)"),
        ("many", [1, "2"], "a list (a number each)"),
        ("many", {"a": 1.0}, "a list (a number each)"),
        ("some", "12", "a list (an integer each)"),
        ("some", [1, 2.5], "a list (an integer each)"),
        ("bare", 3, "a list"),
        ("pair", [1], "a list of 2 (an integer, a text)"),
        ("pair", ["a", 1], "a list of 2 (an integer, a text)"),
        ("table", [1], "a table by name (an integer each)"),
        ("table", {"a": 0.5}, "a table by name (an integer each)"),
        ("lookup", {1: 0.5}, "a table by name (a number each)"),
        ("plain", 3, "a table by name"),
        ("maybe", 0.5, "an integer or none"),
        ("weights", "rnd", 'a list (a number each) or "random" or none'),
    ],
)
def test_an_ill_typed_option_is_refused_in_words(
    gradhomog_install: Install, option: str, value: object, words: str
) -> None:
    name = gradhomog_install("choosy", OPTIONS)
    with pytest.raises(OptionError) as raised:
        gradhomog.pipeline([(name, {"needed": 0, option: value})], registry=Registry())
    assert str(raised.value) == f"choosy: `{option}` must be {words}; got {value!r}."


def test_an_unknown_option_is_answered_with_a_near_one_and_those_accepted() -> None:
    with pytest.raises(OptionError) as raised:
        gradhomog.pipeline("pcgrad(sed=1)")
    message = str(raised.value)
    assert message.startswith("pcgrad has no option 'sed'. Did you mean 'seed'? Its options: ")
    for option in ('order="random"', "seed=0 (an integer)", 'scale="mean"'):
        assert option in message


def test_an_option_that_is_required_is_asked_for(gradhomog_install: Install) -> None:
    name = gradhomog_install("choosy", OPTIONS)
    with pytest.raises(
        OptionError, match=r"choosy needs the option 'needed'. Its options: needed \(an integer\), count=1"
    ):
        gradhomog.pipeline(name, registry=Registry())


def test_what_the_host_supplies_is_not_an_option() -> None:
    with pytest.raises(OptionError, match="maml has no option 'encoder'"):
        Registry().make("learners", "maml", {"encoder": None})


def test_options_are_checked_behind_a_partial_factory_too(gradhomog_install: Install) -> None:
    source = "import functools\n" + FINE.replace("factory=Fine", "factory=functools.partial(Fine, strength=2.0)")
    name = gradhomog_install("partial", source)
    registry = Registry()
    [made] = gradhomog.pipeline(name, registry=registry)
    assert cast(Any, made).strength == 2.0
    with pytest.raises(OptionError, match="`strength` must be a number; got 'x'"):
        gradhomog.pipeline(f"{name}(strength='x')", registry=registry)


# -- making ----------------------------------------------------------------------------------------------------------


def test_a_factory_that_fails_is_named_and_its_error_chained(gradhomog_install: Install) -> None:
    name = gradhomog_install("fails", FINE.replace("self.strength = strength", "raise KeyError('weights')"))
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline(name, registry=Registry())
    where = rf"\(.*fails\.py:5; gradhomog {re.escape(gradhomog.__version__)}\)"
    assert re.fullmatch(
        rf"homogenizer 'fails' of fails 1\.2 \(fails\) could not be made: KeyError: 'weights' {where}\. "
        r"Report it to the authors of fails, or leave 'fails' out\.",
        str(raised.value),
    )
    assert isinstance(raised.value.__cause__, KeyError)


def test_an_option_that_a_factory_refuses_keeps_the_words_of_the_factory(gradhomog_install: Install) -> None:
    refusal = "raise OptionError(f'refuses: `strength` must be positive; got {strength}.')"
    name = gradhomog_install("refuses", FINE.replace("self.strength = strength", refusal))
    with pytest.raises(OptionError, match=r"^refuses: `strength` must be positive; got -1\.$"):
        gradhomog.pipeline(f"{name}(strength=-1)", registry=Registry())


def test_a_homogenizer_plugin_must_make_a_homogenizer(gradhomog_install: Install) -> None:
    name = gradhomog_install("odd", FINE.replace("factory=Fine", "factory=object"))
    with pytest.raises(
        PluginRunError, match=r"of odd 1\.2 \(odd\) must make a gradhomog\.Homogenizer;.*returned object"
    ):
        gradhomog.pipeline(name, registry=Registry())
    name = gradhomog_install("nothing", FINE.replace("factory=Fine", "factory=lambda: None"))
    with pytest.raises(PluginRunError, match=r"must make a gradhomog\.Homogenizer;.*returned NoneType"):
        gradhomog.pipeline(name, registry=Registry())


def test_a_learner_plugin_must_make_a_learner(gradhomog_install: Install) -> None:
    source = hook(
        "return LearnerSpec(factory=lambda encoder, head, homogenizers, rate=1.0: encoder, summary='')",
        "gradhomog_learner()",
    )
    name = gradhomog_install("odd-learner", source, kind="learners")
    module = torch.nn.Identity()
    with pytest.raises(
        PluginRunError, match=r"of odd-learner 1\.2.*must make a gradhomog\.Learner;.*returned Identity"
    ):
        gradhomog.learner(f"{name}(rate=2)", module, module, registry=Registry())
    with pytest.raises(OptionError, match=r"odd_learner has no option 'rat'. Did you mean 'rate'"):
        gradhomog.learner(name, module, module, rat=2, registry=Registry())


def test_a_domain_plugin_must_make_a_domain(gradhomog_install: Install) -> None:
    source = hook(
        "return DomainSpec(factory=lambda variant, size, noise=0.0: variant, summary='')", "gradhomog_domain()"
    )
    name = gradhomog_install("odd-domain", source, kind="domains")
    with pytest.raises(PluginRunError, match=r"of odd-domain 1\.2.*must make a gradhomog\.Domain;.*returned str"):
        gradhomog.domain(f"odd-domain:{name}:greek(noise=1)", registry=Registry())


@pytest.mark.parametrize("what", [5, {"pcgrad": {}}, [("pcgrad", None)], [("pcgrad", {}, 1)], [3], ("pcgrad", {})])
def test_a_pipeline_of_something_else_is_refused(what: Any) -> None:
    with pytest.raises(OptionError, match=r"^a pipeline is .* Homogenizer objects; got"):
        gradhomog.pipeline(what)


def test_a_loaded_plugin_can_wrap_what_is_made(gradhomog_install: Install) -> None:
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
    assert not hasattr(before, "seen")  # nothing is loaded that was not named
    assert cast(Any, own).seen == ("fine", (), {"strength": 3})
    assert cast(Any, other).seen[1:] == ((), {"seed": 1})
    made = registry.make("homogenizers", "pcgrad", {"seed": 2})
    assert isinstance(made[1], HomogenizerSpec)
    assert made[2].seen[2] == {"seed": 2}


def test_observers_are_collected_from_the_loaded_plugins(gradhomog_install: Install) -> None:
    observing = """
@hookimpl
def gradhomog_observers(config):
    return None if config.get("quiet") else lambda event, record: seen.append((event, record, config["run"]))
seen = []
"""
    name = gradhomog_install("observes", FINE + observing)
    registry = Registry()
    assert len(registry.observers({"run": 1}, report=pytest.fail)) == 0
    registry.load("homogenizers", name)
    observers = registry.observers({"run": 1}, report=pytest.fail)
    observers("step", {"loss": 0.5})
    assert sys.modules["observes"].seen == [("step", {"loss": 0.5}, 1)]
    assert len(registry.observers({"quiet": True}, report=pytest.fail)) == 0

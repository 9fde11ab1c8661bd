"""Loading plugins: each is imported once, and each kind of broken distribution raises a specific error."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import gradhomog
from gradhomog import PluginLoadError, Registry
from gradhomog.testing.pytest_plugin import InstallDistribution
from tests.registry.sources import FINE, hook

BROKEN = {
    "import fails": (
        "import no_such_module",
        ["cannot be imported: ModuleNotFoundError", "no_such_module"],
        ImportError,
    ),
    "syntax": ("def (", ["cannot be imported: SyntaxError"], SyntaxError),
    "script without a guard": ("raise SystemExit(3)", ["cannot be imported: SystemExit: 3"], SystemExit),
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
    "misspelled hook": (
        FINE.replace("def gradhomog_homogenizer", "def gradhomog_homogeniser"),
        ["unknown hook 'gradhomog_homogeniser'", "Did you mean 'gradhomog_homogenizer'?"],
        Exception,
    ),
    "second misspelled hook": (
        FINE + "\n@hookimpl\ndef gradhomog_observers(): pass\n",
        ["unknown hook 'gradhomog_observers'", "Did you mean 'gradhomog_observer'?"],
        Exception,
    ),
    "hook with an argument": (
        hook("return None", "gradhomog_homogenizer(size)"),
        ["has an invalid hook", "gradhomog_homogenizer(size)", "'size'"],
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
    "factory without a signature": (
        hook("return HomogenizerSpec(factory=dict, summary='')"),
        ["must have a callable `factory` with a Python signature; got <class 'dict'>"],
        ValueError,
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

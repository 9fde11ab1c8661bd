"""Plugins that cannot be loaded or made: errors name them with distribution and version; no other is harmed."""

from __future__ import annotations

import sys

import pytest
import torch

import gradhomog
from gradhomog import AmbiguousPluginError, PluginLoadError, PluginRunError
from tests.hostile.plugins import ADVICE, HERE, IMPORTS, assert_blamed, install, plugin

HOOK = f"{IMPORTS}@hookimpl\ndef gradhomog_homogenizer(): "
EVEN = "def mix(self, step): return torch.ones(step.tasks)"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('no licence')", "did not load: RuntimeError: no licence"),
        ("import sys; sys.exit('usage: bad FILE')", "did not load: SystemExit: usage: bad FILE"),
        ("def (", "did not load: SyntaxError"),
        (HOOK + "sys.exit(2)", "raised in `gradhomog_homogenizer`: SystemExit"),
        (HOOK + "return {}['x']", "raised in `gradhomog_homogenizer`: KeyError"),
        (HOOK + "return Bad", "raised in `gradhomog_homogenizer`: NameError"),
        (HOOK + "return 3", "must return a HomogenizerSpec"),
    ],
)  # fmt: skip
def test_one_that_does_not_load_is_refused_and_harms_no_other(gradhomog_install, source, words):
    gradhomog_install("bad-dist", source, plugin="bad", version="0.7")
    for _ in range(2):
        with pytest.raises(PluginLoadError) as raised:
            gradhomog.pipeline("pcgrad + bad")
        assert_blamed(str(raised.value), words, f"(gradhomog {gradhomog.__version__})")
    assert "bad" in gradhomog.available()
    assert len(gradhomog.pipeline("pcgrad + mgda")) == 2


def test_one_whose_dependency_is_missing_says_to_reinstall_it(gradhomog_install):
    gradhomog_install("bad-dist", "import no_such_module", plugin="bad", version="0.7")
    with pytest.raises(PluginLoadError) as raised:
        gradhomog.pipeline("bad")
    assert str(raised.value).startswith(f"{HERE} did not load: ModuleNotFoundError: No module named 'no_such_module'")
    assert str(raised.value).endswith("Reinstall bad-dist with all that it depends on, or leave 'bad' out.")


@pytest.mark.parametrize("body", ["raise KeyError('weights')", "sys.exit(1)"])
def test_a_factory_that_raises_is_told_with_its_place(gradhomog_install, body):
    install(gradhomog_install, f"def __init__(self): {body}")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("bad")
    assert_blamed(str(raised.value), "could not be made: ", "bad_dist.py:5; ")


def test_a_factory_that_makes_something_else_is_told(gradhomog_install):
    install(gradhomog_install, "def __new__(cls): return 'a homogenizer'")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("bad")
    assert_blamed(str(raised.value), "must make a gradhomog.Homogenizer; its factory returned str")


def test_the_name_of_a_built_in_is_nobodys_until_the_user_chooses(gradhomog_install):
    install(gradhomog_install, EVEN, plugin="pcgrad")
    with pytest.raises(AmbiguousPluginError) as raised:
        gradhomog.pipeline("pcgrad")
    assert str(raised.value) == (
        f"homogenizer 'pcgrad' is offered by bad-dist 0.7 and gradhomog {gradhomog.__version__}. "
        "Write 'bad-dist:pcgrad' or 'gradhomog:pcgrad' to choose one."
    )
    assert type(next(iter(gradhomog.pipeline("gradhomog:pcgrad")))).__name__ == "PCGrad"
    assert "bad_dist" not in sys.modules


# -- another version of gradhomog ------------------------------------------------------------------------------------

REFUSED = [
    ["gradhomog>=99"],
    ["torch", "GradHomog (<0.0.1)"],
    ["gradhomog==99.*"],
    ["gradhomog[plot]>=99"],
    ['gradhomog>=99; python_version > "3"'],
    ["gradhomog>0.0.1", "gradhomog<0.0.2"],
]
ACCEPTED = [
    [],
    ["gradhomog"],
    ["gradhomog>=0.0.1,<99"],
    ['gradhomog>=99; extra == "test"'],
    ['gradhomog>=99; python_version < "3"'],
    ["torch>=99", "gradhomog-extras>=99"],
    ["no requirement at all !"],
]


@pytest.mark.parametrize("requires", REFUSED, ids=str)
def test_one_that_needs_another_version_is_refused_before_it_is_imported(gradhomog_install, requires):
    gradhomog_install("bad-dist", "raise RuntimeError('imported')", plugin="bad", version="0.7", requires=requires)
    with pytest.raises(PluginLoadError) as raised:
        gradhomog.pipeline("bad")
    message = str(raised.value)
    assert message.startswith(f"{HERE} needs gradhomog ")
    assert f"; this is gradhomog {gradhomog.__version__}. It was not imported. Install a version of bad-dist" in message
    assert "bad_dist" not in sys.modules


@pytest.mark.parametrize("requires", ACCEPTED, ids=str)
def test_one_whose_requirements_do_not_exclude_this_version_is_loaded(gradhomog_install, requires):
    install(gradhomog_install, EVEN, requires=requires)
    assert len(gradhomog.pipeline("bad")) == 1


@pytest.mark.parametrize(("requirement", "fine"), [(">=0.2", True), (">=0.3", False), ("<0.3", False)])
def test_a_development_version_counts_as_what_it_is(gradhomog_install, monkeypatch, requirement, fine):
    # 0.2 < 0.3.dev1 < 0.3, and "<0.3" is meant to exclude what leads to 0.3 (PEP 440).
    monkeypatch.setattr("gradhomog.registry.loading.__version__", "0.3.dev1")
    install(gradhomog_install, EVEN, requires=[f"gradhomog{requirement}"])
    if fine:
        assert len(gradhomog.pipeline("bad")) == 1
    else:
        with pytest.raises(PluginLoadError, match=r"needs gradhomog .*; this is gradhomog 0\.3\.dev1\."):
            gradhomog.pipeline("bad")


@pytest.mark.parametrize("kind", ["learners", "domains"])
def test_learners_and_domains_are_held_to_their_requirements_too(gradhomog_install, kind):
    gradhomog_install("bad-dist", "", plugin="bad", version="0.7", kind=kind, requires=["gradhomog>=99"])
    with pytest.raises(
        PluginLoadError, match=rf"^{kind[:-1]} 'bad' of bad-dist 0\.7 \(bad_dist\) needs gradhomog >=99"
    ):
        gradhomog.registry.installed().load(kind, "bad")


# -- hooks that meddle with others -----------------------------------------------------------------------------------


def make(body: str, marker: str = "hookimpl") -> str:
    return f"@{marker}\ndef gradhomog_make(spec, arguments, options):\n    {body}\n"


def test_a_make_hook_that_would_never_be_called_is_refused(gradhomog_install):
    install(gradhomog_install, EVEN, more=make("return 1 / 0", "hookimpl(trylast=True)"))
    with pytest.raises(PluginLoadError) as raised:
        gradhomog.pipeline("bad")
    assert_blamed(str(raised.value), "`gradhomog_make` with trylast=True, which is never called", "wrapper=True")


@pytest.mark.parametrize(
    ("marker", "body"),
    [
        ("hookimpl", "calls.append(1)"),
        ("hookimpl(tryfirst=True)", "calls.append(1)"),
        ("hookimpl(wrapper=True)", "calls.append(1); return (yield)"),
        ("hookimpl(wrapper=True, trylast=True)", "calls.append(1); return (yield)"),
    ],
)
def test_every_make_hook_that_is_not_refused_is_called(gradhomog_install, marker, body):
    install(gradhomog_install, EVEN, more="calls = []\n" + make(body, marker))
    gradhomog.pipeline("bad + pcgrad")
    assert sys.modules["bad_dist"].calls == [1, 1]


def test_a_wrapper_of_a_hook_that_is_not_called_is_refused(gradhomog_install):
    more = "@hookimpl(wrapper=True)\ndef gradhomog_observer():\n    return (yield)\n"
    install(gradhomog_install, EVEN, more=more)
    with pytest.raises(PluginLoadError) as raised:
        gradhomog.pipeline("bad")
    assert_blamed(str(raised.value), "wraps the hook `gradhomog_observer`", "only `gradhomog_make` can be wrapped")


@pytest.mark.parametrize(
    ("marker", "body"),
    [
        ("hookimpl", "return 1 / 0"),
        ("hookimpl(wrapper=True)", "yield 1 / 0"),
        ("hookimpl(wrapper=True)", "made = yield; return made / 0"),
    ],
)
def test_a_make_hook_that_raises_is_blamed_and_not_the_plugin_that_is_made(gradhomog_install, marker, body):
    install(gradhomog_install, EVEN, more=make(body, marker))
    gradhomog.registry.installed().load("homogenizers", "bad")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("pcgrad")
    assert str(raised.value).startswith(f"{HERE} raised in `gradhomog_make` for homogenizer 'pcgrad' of gradhomog ")
    assert str(raised.value).endswith(ADVICE)


def test_a_wrapper_that_forgets_to_return_is_blamed_and_not_the_plugin_that_is_made(gradhomog_install):
    install(gradhomog_install, EVEN, more=make("yield", "hookimpl(wrapper=True)"))
    gradhomog.registry.installed().load("homogenizers", "bad")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("pcgrad")
    assert "'pcgrad' of gradhomog" in str(raised.value)
    assert_blamed(str(raised.value), f"discarded by `gradhomog_make` of {HERE}: a wrapper must return")


def test_a_factory_that_raises_within_a_wrapper_is_blamed_and_not_the_wrapper(gradhomog_install):
    gradhomog_install("wraps", plugin(EVEN, more=make("return (yield)", "hookimpl(wrapper=True)")))
    install(gradhomog_install, "def __init__(self): raise KeyError('weights')")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("wraps + bad")
    assert_blamed(str(raised.value), "could not be made: KeyError: 'weights'")


# -- two that want to be last ----------------------------------------------------------------------------------------


def test_nobody_comes_after_one_that_must_be_last(gradhomog_install):
    install(gradhomog_install, EVEN, "last=True")
    with pytest.raises(gradhomog.OptionError) as raised:
        gradhomog.pipeline("bad + pcgrad")
    version = gradhomog.__version__
    assert str(raised.value) == (
        f"{HERE} must be the last of a pipeline, but homogenizer 'pcgrad' of gradhomog {version} "
        "(gradhomog_plugins.pcgrad) comes after it. Write 'bad' at the end."
    )
    pipe = gradhomog.pipeline("pcgrad + bad")
    assert torch.isfinite(pipe.combine(torch.eye(2))).all()
    assert len(gradhomog.pipeline("bad")) == 1


def test_of_two_that_must_be_last_only_one_can_be_chosen(gradhomog_install):
    install(gradhomog_install, EVEN, "last=True")
    gradhomog_install("other-dist", plugin(EVEN, "last=True"), plugin="other", version="3.1")
    for text in ("bad + other", "bad + pcgrad + other"):
        with pytest.raises(gradhomog.OptionError) as raised:
            gradhomog.pipeline(text)
        assert str(raised.value) == (
            f"{HERE} and homogenizer 'other' of other-dist 3.1 (other_dist) must each be the last of a pipeline, so "
            "only one of them can be chosen. Leave 'bad' or 'other' out."
        )

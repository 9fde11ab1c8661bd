"""Plugins that cannot be loaded or created: errors name plugin, distribution and version; others still work."""

import inspect
import operator
import sys

import pytest
import torch

import gradhomog
from gradhomog import PluginLoadError, PluginRunError
from gradhomog.global_state import READ_AT_LOADING
from tests.hostile.plugins import ADVICE, HERE, assert_blamed, install, plugin


def error_of(kind: type[Exception], text: str) -> str:
    """Return the message of the error that a pipeline raises when it is created."""
    with pytest.raises(kind) as raised:
        gradhomog.pipeline(text)
    return str(raised.value)


EVEN = "def mix(self, step): return torch.ones(step.tasks)"


# -- global settings and functions of PyTorch ------------------------------------------------------------------------

CHANGES = {
    "torch.set_default_dtype(torch.float64)": "the default dtype from torch.float32 to torch.float64",
    "torch.set_num_threads(torch.get_num_threads() + 1)": "the number of threads from ",
    "torch.set_grad_enabled(not torch.is_grad_enabled())": "the gradient mode from ",
    "torch.use_deterministic_algorithms(True)": "deterministic algorithms from False to True",
    "torch.set_autocast_enabled('cpu', True)": "autocast on the CPU from False to True",
    "torch.set_autocast_enabled('cuda', True)": "autocast on GPUs from False to True",
}
PRECISIONS = {
    "torch.set_float32_matmul_precision('high')": "the float32 matmul precision from highest to high",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "the float32 matmul precision from highest to of backends",
}
PATCHES = {
    "torch.optim.Adam.step = lambda self, closure=None: None": "the function torch.optim.adam.Adam.step",
    "torch.optim.Adam.step = __import__('functools').wraps(torch.optim.Adam.step)(lambda self: None)\n"
    "torch.optim.Adam([torch.zeros(1)])": "the function torch.optim.adam.Adam.step",
    "torch.optim.Optimizer.zero_grad = print": "the function torch.optim.optimizer.Optimizer.zero_grad",
    "torch.Tensor.backward = lambda self: None": "the function torch.Tensor.backward",
    "torch.autograd.grad = lambda *a, **k: None": "the function torch.autograd.grad",
}


def read_globals():
    functions = torch.optim.Optimizer.zero_grad, torch.Tensor.backward, torch.autograd.grad
    return *map(operator.call, READ_AT_LOADING), inspect.unwrap(torch.optim.Adam.step), *functions


@pytest.mark.parametrize(("line", "change"), (CHANGES | PRECISIONS | PATCHES).items())
def test_an_import_that_changes_what_other_methods_use_raises_and_is_undone(gradhomog_install, line, change):
    before = read_globals()
    gradhomog_install("bad-dist", f"import torch\n{line}\n{plugin(EVEN)}", plugin="bad", version="0.7")
    for _ in range(2):
        assert_blamed(error_of(PluginLoadError, "bad"), f"changes {change}", "when it is imported")
        assert read_globals() == before


@pytest.mark.parametrize(("line", "change"), (CHANGES | PRECISIONS | PATCHES).items())
@pytest.mark.parametrize("place", ["the factory", "`gradhomog_homogenizer`", "`gradhomog_make`"])
def test_a_factory_or_a_hook_that_changes_what_other_methods_use_raises_and_is_undone(
    gradhomog_install, place, line, change
):
    before, line = read_globals(), line.replace("\n", "; ")
    source = plugin(f"def __init__(self): {line}" if place == "the factory" else EVEN)
    if place == "`gradhomog_homogenizer`":
        source = source.replace("return gradhomog.", f"{line}; return gradhomog.")
    elif place == "`gradhomog_make`":
        source += make(f"{line}; return (yield)", "hookimpl(wrapper=True)")
    gradhomog_install("bad-dist", source, plugin="bad", version="0.7")
    for _ in range(2):
        kind = PluginLoadError if place == "`gradhomog_homogenizer`" else PluginRunError
        message = error_of(kind, "bad")
        assert_blamed(message, f"changes {change}", place)
        assert read_globals() == before


def test_an_import_leaves_the_random_numbers_of_others_as_they_were(gradhomog_install):
    gradhomog_install("bad-dist", f"import torch\ntorch.manual_seed(7)\ntorch.rand(3)\n{plugin(EVEN)}", plugin="bad")
    before = torch.random.get_rng_state()
    assert len(gradhomog.pipeline("bad")) == 1
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_factory_may_draw_random_numbers(gradhomog_install):
    install(gradhomog_install, f"def __init__(self): self.start = torch.rand(3)\n{EVEN}")
    torch.manual_seed(0)
    first = next(iter(gradhomog.pipeline("bad"))).start
    assert not torch.equal(first, next(iter(gradhomog.pipeline("bad"))).start)


@pytest.mark.parametrize(("line", "change"), CHANGES.items())
def test_a_stage_that_changes_global_settings_raises_and_is_undone(gradhomog_install, line, change):
    before = read_globals()
    install(gradhomog_install, f"def mix(self, step):\n    {line}\n    return torch.ones(step.tasks)")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("bad").combine(torch.eye(2))
    assert_blamed(str(raised.value), f"changed {change}", "in `mix`")
    assert read_globals() == before


def test_wrappers_of_pytorch_around_optimizers_are_not_changes_of_a_plugin(gradhomog_install):
    """PyTorch wraps `step` at the first optimizer of a class, and further methods at the first compilation."""
    install(gradhomog_install, EVEN, more="torch.optim.Rprop([torch.zeros(1)])\ntorch.compile(abs, backend='eager')(1)")
    assert len(gradhomog.pipeline("bad")) == 1


# -- another version of gradhomog ------------------------------------------------------------------------------------

INCOMPATIBLE = [
    ["gradhomog>=99"], ["torch", "GradHomog (<0.0.1)"], ["gradhomog==99.*"], ["gradhomog[plot]>=99"],
    ['gradhomog>=99; python_version > "3"'], ["gradhomog>0.0.1", "gradhomog<0.0.2"],
]  # fmt: skip
COMPATIBLE = [
    [], ["gradhomog"], ["gradhomog>=0.0.1,<99"], ['gradhomog>=99; extra == "test"'],
    ['gradhomog>=99; python_version < "3"'], ["torch>=99", "gradhomog-extras>=99"], ["no requirement at all !"],
]  # fmt: skip


@pytest.mark.parametrize("requires", INCOMPATIBLE, ids=str)
def test_a_plugin_for_another_version_raises_before_it_is_imported(gradhomog_install, requires):
    gradhomog_install("bad-dist", "raise RuntimeError('imported')", plugin="bad", version="0.7", requires=requires)
    message = error_of(PluginLoadError, "bad")
    assert message.startswith(f"{HERE} requires gradhomog ")
    assert f", but gradhomog {gradhomog.__version__} is installed. It was not imported. Install a version of" in message
    assert "bad_dist" not in sys.modules


@pytest.mark.parametrize("requires", COMPATIBLE, ids=str)
def test_a_plugin_whose_requirements_include_this_version_is_loaded(gradhomog_install, requires):
    install(gradhomog_install, EVEN, requires=requires)
    assert len(gradhomog.pipeline("bad")) == 1


@pytest.mark.parametrize(("requirement", "fine"), [(">=0.2", True), (">=0.3", False), ("<0.3", False)])
def test_development_versions_are_compared_by_pep_440(gradhomog_install, monkeypatch, requirement, fine):
    # 0.2 < 0.3.dev1 < 0.3, and "<0.3" excludes pre-releases of 0.3.
    monkeypatch.setattr("gradhomog.registry.registry.__version__", "0.3.dev1")
    install(gradhomog_install, EVEN, requires=[f"gradhomog{requirement}"])
    if fine:
        assert len(gradhomog.pipeline("bad")) == 1
    else:
        with pytest.raises(PluginLoadError, match=r"requires gradhomog .*, but gradhomog 0\.3\.dev1 is installed\."):
            gradhomog.pipeline("bad")


# -- hooks that affect other plugins ---------------------------------------------------------------------------------


def make(body: str, marker: str = "hookimpl") -> str:
    return f"@{marker}\ndef gradhomog_make(spec, arguments, options):\n    {body}\n"


@pytest.mark.parametrize(
    ("marker", "body"),
    [
        ("hookimpl", "return 1 / 0"),
        ("hookimpl(wrapper=True)", "yield 1 / 0"),
        ("hookimpl(wrapper=True)", "made = yield; return made / 0"),
    ],
)
def test_an_error_in_a_make_hook_names_its_plugin_and_not_the_created_one(gradhomog_install, marker, body):
    install(gradhomog_install, EVEN, more=make(body, marker))
    gradhomog.registry.installed().load("homogenizers", "bad")
    message = error_of(PluginRunError, "pcgrad")
    assert message.startswith(f"{HERE} raised in `gradhomog_make` for homogenizer 'pcgrad' of gradhomog ")
    assert message.endswith(ADVICE)


WRAPPER = "@hookimpl(wrapper=True)\ndef gradhomog_observer():\n    return (yield)\n"


@pytest.mark.parametrize(
    ("methods", "more", "error", "words"),
    [
        ("def __init__(self): sys.exit(1)", "", PluginRunError, [f"the factory of {HERE} raised ", "bad_dist.py:5; "]),
        (
            EVEN, make("return 1 / 0", "hookimpl(trylast=True)"), PluginLoadError,
            ["`gradhomog_make` with trylast=True, which is never called", "wrapper=True"],
        ),
        (
            EVEN, WRAPPER, PluginLoadError,
            ["wraps the hook `gradhomog_observer`", "only `gradhomog_make` can be wrapped"],
        ),
        (
            EVEN, make("yield", "hookimpl(wrapper=True)"), PluginRunError,
            [f"`gradhomog_make` of {HERE} returned None for", "a wrapper must return"],
        ),
    ],
)  # fmt: skip
def test_a_factory_or_a_hook_that_cannot_work_raises(gradhomog_install, methods, more, error, words):
    install(gradhomog_install, methods, more=more)
    assert_blamed(error_of(error, "bad"), *words)


def test_a_factory_that_raises_within_a_wrapper_is_named_and_not_the_wrapper(gradhomog_install):
    gradhomog_install("wraps", plugin(EVEN, more=make("return (yield)", "hookimpl(wrapper=True)")))
    install(gradhomog_install, "def __init__(self): raise KeyError('weights')")
    assert_blamed(error_of(PluginRunError, "wraps + bad"), f"the factory of {HERE} raised KeyError: 'weights'")


# -- homogenizers that must be last ----------------------------------------------------------------------------------


def test_a_homogenizer_after_one_that_must_be_last_raises(gradhomog_install):
    install(gradhomog_install, EVEN, "last=True")
    message = error_of(gradhomog.OptionError, "bad + pcgrad")
    version = gradhomog.__version__
    assert message == (
        f"{HERE} must be the last of a pipeline, but homogenizer 'pcgrad' of gradhomog {version} "
        "(gradhomog_plugins.pcgrad) comes after it. Write 'bad' at the end."
    )
    pipe = gradhomog.pipeline("pcgrad + bad")
    assert torch.isfinite(pipe.combine(torch.eye(2))).all()
    assert len(gradhomog.pipeline("bad")) == 1


def test_two_homogenizers_that_must_be_last_raise(gradhomog_install):
    install(gradhomog_install, EVEN, "last=True")
    gradhomog_install("other-dist", plugin(EVEN, "last=True"), plugin="other", version="3.1")
    for text in ("bad + other", "bad + pcgrad + other"):
        message = error_of(gradhomog.OptionError, text)
        assert message == (
            f"{HERE} and homogenizer 'other' of other-dist 3.1 (other_dist) must each be the last of a pipeline, so "
            "they cannot be combined. Remove 'bad' or 'other'."
        )

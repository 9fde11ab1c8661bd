"""Creating objects: of the type that the plugin's kind requires, through the wrappers of loaded plugins."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
import torch

import gradhomog
from gradhomog import HomogenizerSpec, OptionError, PluginRunError, Registry
from gradhomog.testing.pytest_plugin import InstallDistribution
from tests.registry.sources import FINE, hook


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
    name = gradhomog_install("nothing", FINE.replace("factory=Fine", "factory=lambda: None"))
    with pytest.raises(PluginRunError, match=r"must return a gradhomog\.Homogenizer; got NoneType"):
        gradhomog.pipeline(name, registry=Registry())


def test_the_factory_of_a_learner_plugin_must_return_a_learner(gradhomog_install: InstallDistribution) -> None:
    source = hook(
        "return LearnerSpec(factory=lambda encoder, head, homogenizers, rate=1.0: encoder, summary='')",
        "gradhomog_learner()",
    )
    name = gradhomog_install("odd-learner", source, kind="learners")
    module = torch.nn.Identity()
    with pytest.raises(PluginRunError, match=r"of odd-learner 1\.2.*must return a gradhomog\.Learner; got Identity"):
        gradhomog.learner(f"{name}(rate=2)", module, module, registry=Registry())
    with pytest.raises(OptionError, match=r"odd_learner has no option 'rat'. Did you mean 'rate'"):
        gradhomog.learner(name, module, module, rat=2, registry=Registry())


def test_the_factory_of_a_domain_plugin_must_return_a_domain(gradhomog_install: InstallDistribution) -> None:
    source = hook(
        "return DomainSpec(factory=lambda variant, size, noise=0.0: variant, summary='')", "gradhomog_domain()"
    )
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

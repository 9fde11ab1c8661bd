"""Options are checked against the annotations of a factory before it is called, and refused in words."""

from __future__ import annotations

from typing import Any, cast

import pytest

import gradhomog
from gradhomog import OptionError, Registry
from gradhomog.testing.pytest_plugin import Install
from tests.registry.sources import FINE, IMPORTS

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
        ("weights", [10**20]),
        ("rate", 10**20),
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
        ("many", [1.0, -(2**1024)], "a list (a number each) of at most 64 bits"),
        ("some", [1, 2**63], "a list (an integer each) of at most 64 bits"),
        ("lookup", {"a": 2**1024}, "a table by name (a number each) of at most 64 bits"),
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

"""Names of a plugin: three spellings of one name, and suggestions for invalid names."""

from __future__ import annotations

import keyword
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

from gradhomog import OptionError
from gradhomog.registry import expression
from gradhomog.scaffold.project import LONGEST, Names, names

WORDS = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
PARTS = st.lists(WORDS, min_size=1, max_size=4).filter(lambda parts: parts[0] != "gradhomog")


def usable(parts: list[str]) -> bool:
    name = "_".join(parts)
    return len(name) <= LONGEST and not keyword.iskeyword(name) and name not in ("none", "true", "false", "inf")


@given(PARTS.filter(usable), st.sampled_from("-_"), st.sampled_from(["", "gradhomog-", "gradhomog_"]))
def test_all_spellings_of_a_name_give_the_same_plugin(parts: list[str], separator: str, prefix: str) -> None:
    found = names(prefix + separator.join(parts))
    assert found.plugin == "_".join(parts)
    assert found.distribution == "gradhomog-" + "-".join(parts)
    assert found.module == "gradhomog_" + "_".join(parts)


@given(PARTS.filter(usable))
def test_an_accepted_name_is_valid_as_a_distribution_a_module_a_class_and_in_a_pipeline(parts: list[str]) -> None:
    found = names("-".join(parts))
    assert canonicalize_name(found.distribution) == found.distribution
    assert found.module.isidentifier()
    assert expression.parse(found.plugin) == [(found.plugin, {})]
    name = found.class_name("homogenizers", "")
    assert name.isidentifier()
    assert not keyword.iskeyword(name)
    assert name[0].isupper()


@given(st.text(max_size=40))
def test_any_text_is_accepted_or_raises_with_a_suggestion_that_is_accepted(text: str) -> None:
    try:
        found = names(text)
    except OptionError as error:
        suggested = re.search(r"Write '([^']*)', for example\.\Z", str(error))
        assert suggested
        assert names(suggested[1])
    else:
        assert names(found.distribution) == names(found.plugin) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "",
            "must start with a letter and contain only lower-case letters, digits and single hyphens; got ''. "
            "Write 'sign-vote'",
        ),
        ("SignVote", "got 'SignVote'. Write 'sign-vote'"),
        ("sign vote!", "got 'sign vote!'. Write 'sign-vote'"),
        (
            "2nd-order",
            "must start with a letter and contain only lower-case letters, digits and single hyphens; got "
            "'2nd-order'. Write 'nd-order'",
        ),
        ("sign--vote", "digits and single hyphens; got 'sign--vote'. Write 'sign-vote'"),
        ("sign-", "got 'sign-'. Write 'sign'"),
        ("größe", "got 'größe'. Write 'gr-e'"),
        ("gradhomog-", "got 'gradhomog-'. Write 'sign-vote'"),
        ("gradhomog", "must not be gradhomog itself; got 'gradhomog'"),
        ("gradhomog-lambda", "must not be a keyword of Python; got 'gradhomog-lambda'. Write 'lambda-rows'"),
        ("none", "must not be a reserved word of the text form of a pipeline; got 'none'. Write 'none-rows'"),
        ("a" * 29, f"must have at most 28 characters; got '{'a' * 29}'. Write '{'a' * 28}'"),
    ],
)
def test_an_invalid_name_raises_with_a_valid_one(given: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        names(given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("plugin", "source", "expected"),
    [
        ("sign_vote", "class PluginName: ...", "SignVote"),
        ("sign_vote", "from gradhomog import SignVotes", "SignVote"),
        ("step", "from gradhomog import Step", "StepLearner"),
        ("value_error", "", "ValueErrorLearner"),
        ("r2_d2", "", "R2D2"),
    ],
)
def test_the_class_does_not_shadow_another_name(plugin: str, source: str, expected: str) -> None:
    assert Names(plugin).class_name("learners", source) == expected

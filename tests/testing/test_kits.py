"""Which checks of which plugin are run: names, kinds, patterns, expected failures, and what is refused."""

from __future__ import annotations

import pytest
import torch

from gradhomog import ExpressionError, Homogenizer, HomogenizerSpec, OptionError, PluginLoadError, UnknownPluginError
from gradhomog.testing import check_domain, check_homogenizer, check_learner, checks


class Mean(Homogenizer):
    """The mean of the rows."""

    def mix(self, step):
        return torch.ones(step.tasks)


FINE = HomogenizerSpec(factory=Mean, summary="the mean", reference="new")
DRAFT = HomogenizerSpec(factory=Mean, summary="", reference="new")
DRAWS = HomogenizerSpec(factory=Mean, summary="the mean", reference="new", traits={"stochastic"})


@pytest.mark.parametrize("kind", ["homogenizers", "learners", "domains"])
def test_every_check_has_a_name_of_its_own_and_says_what_it_asks(kind):
    found = checks(kind)
    assert len({check.name for check in found}) == len(found) > 10
    assert all(check.kind == kind and check.summary.endswith(".") for check in found)
    assert found == checks(kind)


def test_checks_are_of_homogenizers_unless_asked_otherwise():
    assert checks() == checks("homogenizers")


def test_another_kind_is_refused_with_those_that_there_are():
    with pytest.raises(
        OptionError, match="`kind` must be one of 'homogenizers', 'learners', 'domains'; got 'adapters'"
    ):
        checks("adapters")


# -- which are run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("documented", ["documented"]),
        ("do*", ["documented"]),
        (["half_*", "documented"], ["documented", "half_precision"]),
        (("documented", "documented", "d*cumented"), ["documented"]),
        ("*_rows", ["finite_for_finite_rows", "dict_rows", "identical_rows"]),
    ],
)
def test_each_check_that_some_pattern_matches_is_run_once_in_the_order_of_the_kit(only, expected):
    assert [result.check for result in check_homogenizer(FINE, only=only)] == expected


@pytest.mark.parametrize("only", ["documentd", ["x*", "y"], [], "", "DOCUMENTED"])
def test_patterns_that_match_no_check_are_refused_with_the_names_of_all(only):
    with pytest.raises(OptionError) as raised:
        check_homogenizer(FINE, only=only)
    assert f"{only!r} matches none of: documented, options_validated, " in str(raised.value)


# -- expected failures -----------------------------------------------------------------------------------------------


def expecting(spec, **reasons):
    """What each check that is expected to fail came to."""
    report = check_homogenizer(spec, only=list(reasons), expected_failures=reasons)
    return report, [report[name].outcome for name in reasons]


def test_an_expected_failure_is_no_failure_and_told_with_its_reason():
    report, outcomes = expecting(DRAFT, documented="not yet written")
    assert (report.passed, outcomes) == (True, ["expected"])
    assert report["documented"].message.startswith("not yet written (`summary` must be one line")
    assert not check_homogenizer(DRAFT, only="documented").passed


def test_an_expected_failure_that_passes_fails():
    report, outcomes = expecting(FINE, documented="not yet written")
    assert (report.passed, outcomes) == (False, ["failed"])
    assert "expected to fail (not yet written), but does not" in report["documented"].message


def test_no_failure_is_to_be_expected_of_what_is_not_claimed():
    assert check_homogenizer(FINE, only="stochastic")["stochastic"].outcome == "not held"
    report, outcomes = expecting(FINE, stochastic="draws in secret")
    assert (report.passed, outcomes) == (False, ["failed"])
    assert "'stochastic' is not claimed" in report["stochastic"].message
    assert expecting(DRAWS, stochastic="draws in secret")[1] == ["expected"]


def test_where_there_is_nothing_to_check_an_expected_failure_is_none():
    report, outcomes = expecting(FINE, imports_cleanly="slow")
    assert (report.passed, outcomes) == (True, ["not applicable"])


@pytest.mark.parametrize("reason", ["", "  \n", None, True])
def test_an_expected_failure_needs_a_reason(reason):
    with pytest.raises(OptionError, match="must give the reason why documented fails, in a text; got "):
        check_homogenizer(FINE, only="documented", expected_failures={"documented": reason})


@pytest.mark.parametrize(
    ("name", "hint"),
    [("identical_row", r"Did you mean 'identical_rows'\?"), ("§", r"The checks: documented, options_validated, ")],
)
def test_an_expected_failure_of_a_check_that_does_not_exist_is_refused_with_one_that_does(name, hint):
    with pytest.raises(OptionError, match=f"names the check '{name}', which does not exist. {hint}"):
        check_homogenizer(FINE, only="documented", expected_failures={name: "of course"})


# -- of what ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["static(weights=[1, 2])", ("static", {"weights": [1, 2]})])
def test_options_stand_in_the_text_or_beside_it(what):
    report = check_homogenizer(what, only="documented")
    assert report.subject.startswith("homogenizer static(weights=[1, 2]) of gradhomog ")
    assert report.passed


def test_a_spec_is_called_by_its_factory():
    assert check_homogenizer(FINE, only="documented").subject == "homogenizer Mean"


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("statik", UnknownPluginError, "Did you mean 'static'"),
        ("static(", ExpressionError, r"static\("),
        ("static(weight=1)", OptionError, "has no option 'weight'. Did you mean 'weights'"),
    ],
)
def test_a_homogenizer_that_cannot_be_made_is_told_before_any_check(what, error, says):
    with pytest.raises(error, match=says):
        check_homogenizer(what, only="documented")


@pytest.mark.parametrize("check", [check_homogenizer, check_learner, check_domain])
@pytest.mark.parametrize("what", [3, None, ("static", 3), ("static",), (3, {}), ["static"]])
def test_what_is_neither_name_nor_pair_nor_spec_is_refused(check, what):
    with pytest.raises(OptionError, match=r"is a name, a pair \(name, options\) or a [HLD]\w+Spec; got "):
        check(what, only="documented")


SOURCE = """
    import gradhomog, torch

    class Even(gradhomog.Homogenizer):
        "Weights of one."
        def mix(self, step):
            return torch.ones(step.tasks)

    @gradhomog.hookimpl
    def gradhomog_homogenizer():
        return gradhomog.HomogenizerSpec(factory=Even, summary="even", reference="new")
"""


def test_a_name_is_looked_up_in_the_registry_given(gradhomog_registry, gradhomog_install):
    from gradhomog.registry import Registry, using

    gradhomog_install("fake-one", SOURCE)
    with using(Registry((), disabled=())):
        with pytest.raises(UnknownPluginError, match="fake_one"):
            check_homogenizer("fake_one", only="documented")
        report = check_homogenizer("fake_one", only="documented", registry=gradhomog_registry)
    assert report.subject == "homogenizer fake_one of fake-one 1.2 (fake_one)"
    assert report.passed


def test_a_plugin_that_does_not_load_is_told_and_not_checked(gradhomog_install):
    gradhomog_install("fake-one", "import no_such_module")
    with pytest.raises(PluginLoadError, match=r"of fake-one 1\.2 .*no_such_module"):
        check_homogenizer("fake_one")

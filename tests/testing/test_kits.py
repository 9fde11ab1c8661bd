"""Selection of checks and plugins: names, kinds, patterns, expected failures, and errors."""

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
def test_every_check_has_a_unique_name_and_a_summary(kind):
    found = checks(kind)
    assert len({check.name for check in found}) == len(found) > 10
    assert all(check.kind == kind and check.summary.endswith(".") for check in found)
    assert found == checks(kind)


def test_homogenizers_are_the_default_kind():
    assert checks() == checks("homogenizers")


def test_the_error_for_an_unknown_kind_lists_the_kinds():
    with pytest.raises(
        OptionError, match="`kind` must be one of 'homogenizers', 'learners', 'domains'; got 'adapters'"
    ):
        checks("adapters")


# -- selection of checks ---------------------------------------------------------------------------------------------


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
def test_every_check_that_matches_a_pattern_runs_once_in_the_order_of_the_kit(only, expected):
    assert [result.check for result in check_homogenizer(FINE, only=only)] == expected


@pytest.mark.parametrize("only", ["documentd", ["x*", "y"], [], "", "DOCUMENTED"])
def test_the_error_for_patterns_without_match_lists_all_checks(only):
    with pytest.raises(OptionError) as raised:
        check_homogenizer(FINE, only=only)
    assert f"{only!r} matches none of: documented, options_validated, " in str(raised.value)


# -- expected failures -----------------------------------------------------------------------------------------------


def report_with_expected_failures(spec, **reasons):
    """Return the report of checks that are expected to fail, and their outcomes."""
    report = check_homogenizer(spec, only=list(reasons), expected_failures=reasons)
    return report, [report[name].outcome for name in reasons]


def test_an_expected_failure_is_reported_with_its_reason_and_is_no_failure():
    report, outcomes = report_with_expected_failures(DRAFT, documented="not yet written")
    assert (report.passed, outcomes) == (True, ["expected"])
    assert report["documented"].message.startswith("not yet written (`summary` must be one line")
    assert not check_homogenizer(DRAFT, only="documented").passed


def test_an_expected_failure_that_passes_fails():
    report, outcomes = report_with_expected_failures(FINE, documented="not yet written")
    assert (report.passed, outcomes) == (False, ["failed"])
    assert "expected to fail (not yet written), but does not" in report["documented"].message


def test_an_expected_failure_of_a_trait_that_is_not_claimed_fails():
    assert check_homogenizer(FINE, only="stochastic")["stochastic"].outcome == "not held"
    report, outcomes = report_with_expected_failures(FINE, stochastic="draws in secret")
    assert (report.passed, outcomes) == (False, ["failed"])
    assert "'stochastic' is not claimed" in report["stochastic"].message
    assert report_with_expected_failures(DRAWS, stochastic="draws in secret")[1] == ["expected"]


def test_an_expected_failure_of_a_check_that_is_not_applicable_is_not_applicable():
    report, outcomes = report_with_expected_failures(FINE, imports_cleanly="slow")
    assert (report.passed, outcomes) == (True, ["not applicable"])


@pytest.mark.parametrize("reason", ["", "  \n", None, True])
def test_an_expected_failure_needs_a_reason(reason):
    with pytest.raises(OptionError, match="must give the reason why documented fails, as a string; got "):
        check_homogenizer(FINE, only="documented", expected_failures={"documented": reason})


@pytest.mark.parametrize(
    ("name", "hint"),
    [("identical_row", r"Did you mean 'identical_rows'\?"), ("§", r"The checks: documented, options_validated, ")],
)
def test_the_error_for_an_expected_failure_of_an_unknown_check_suggests_a_check(name, hint):
    with pytest.raises(OptionError, match=f"names the check '{name}', which does not exist. {hint}"):
        check_homogenizer(FINE, only="documented", expected_failures={name: "of course"})


# -- plugins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plugin", ["static(weights=[1, 2])", ("static", {"weights": [1, 2]})])
def test_options_are_part_of_the_text_or_given_as_a_pair(plugin):
    report = check_homogenizer(plugin, only="documented")
    assert report.subject.startswith("homogenizer static(weights=[1, 2]) of gradhomog ")
    assert report.passed


def test_a_spec_is_named_by_its_factory():
    assert check_homogenizer(FINE, only="documented").subject == "homogenizer Mean"


@pytest.mark.parametrize(
    ("plugin", "error", "message"),
    [
        ("statik", UnknownPluginError, "Did you mean 'static'"),
        ("static(", ExpressionError, r"static\("),
        ("static(weight=1)", OptionError, "has no option 'weight'. Did you mean 'weights'"),
    ],
)
def test_an_unknown_name_or_option_raises_before_any_check(plugin, error, message):
    with pytest.raises(error, match=message):
        check_homogenizer(plugin, only="documented")


@pytest.mark.parametrize("check", [check_homogenizer, check_learner, check_domain])
@pytest.mark.parametrize("plugin", [3, None, ("static", 3), ("static",), (3, {}), ["static"]])
def test_other_objects_than_a_name_a_pair_or_a_spec_raise(check, plugin):
    with pytest.raises(OptionError, match=r"must be a name, a pair \(name, options\) or a [HLD]\w+Spec; got "):
        check(plugin, only="documented")


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


def test_the_argument_registry_provides_the_plugin(gradhomog_registry, gradhomog_install):
    from gradhomog.registry import Registry, using

    gradhomog_install("fake-one", SOURCE)
    with using(Registry((), disabled=())):
        with pytest.raises(UnknownPluginError, match="fake_one"):
            check_homogenizer("fake_one", only="documented")
        report = check_homogenizer("fake_one", only="documented", registry=gradhomog_registry)
    assert report.subject == "homogenizer fake_one of fake-one 1.2 (fake_one)"
    assert report.passed


def test_a_plugin_that_does_not_load_raises(gradhomog_install):
    gradhomog_install("fake-one", "import no_such_module")
    with pytest.raises(PluginLoadError, match=r"of fake-one 1\.2 .*no_such_module"):
        check_homogenizer("fake_one")

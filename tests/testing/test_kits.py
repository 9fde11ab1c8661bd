"""Selection of checks and plugins: names, kinds, patterns, expected failures, and errors."""

import dataclasses
import textwrap

import pytest
import torch

from gradhomog import Homogenizer, HomogenizerSpec, LearnerSpec, OptionError, UnknownPluginError
from gradhomog.testing import check_homogenizer, check_learner, checks
from gradhomog.testing.snapshots import seeded_global_generators
from tests.testing.learners.good import GOOD as LEARNERS
from tests.testing.learners.good import OneStep
from tests.testing.test_pytest_plugin import SOURCE


class Mean(Homogenizer):
    """The mean of the rows."""

    def mix(self, step):
        return torch.ones(step.tasks)


FINE = HomogenizerSpec(factory=Mean, summary="the mean", reference="new")


def test_the_error_for_an_unknown_kind_lists_the_kinds():
    with pytest.raises(OptionError, match="`kind` must be one of 'homogenizers', 'learners'; got 'adapters'"):
        checks("adapters")


# -- selection of checks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only", "expected"),
    [
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


@pytest.mark.parametrize("check", [check_homogenizer, check_learner])
@pytest.mark.parametrize("plugin", [3, None, ("static", 3), ("static",), (3, {}), ["static"]])
def test_other_objects_than_a_name_a_pair_or_a_spec_raise(check, plugin):
    with pytest.raises(OptionError, match=r"must be a name, a pair \(name, options\) or a [HL]\w+Spec; got "):
        check(plugin, only="documented")


def test_the_argument_registry_provides_the_plugin(gradhomog_registry, gradhomog_install):
    from gradhomog.registry import Registry, using

    gradhomog_install("fake-one", SOURCE)
    with using(Registry((), disabled=())):
        with pytest.raises(UnknownPluginError, match="fake_one"):
            check_homogenizer("fake_one", only="documented")
        report = check_homogenizer("fake_one", only="documented", registry=gradhomog_registry)
    assert report.subject == "homogenizer fake_one of fake-one 1.2 (fake_one)"
    assert report.passed


# -- plugins that cannot be made, or only for some tasks -------------------------------------------------------------


def needs_a_transformer(encoder, head, homogenizers=None):
    """A factory that rejects the small convolutional network."""
    raise OptionError("`encoder` must have attention heads; found none.")


def not_a_learner(encoder, head, homogenizers=None):
    """A factory that returns no learner."""
    return encoder


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (needs_a_transformer, "OptionError: `encoder` must have attention heads"),
        (not_a_learner, "PluginRunError: learner not_a_learner must make a gradhomog.Learner; got Sequential."),
    ],
)
def test_a_learner_that_cannot_be_made_fails_one_check_and_others_are_not_applicable(factory, message):
    report = check_learner(LearnerSpec(factory, "s", "r"))
    assert message in report["computes_rows"].message
    assert {result.check for result in report if result.outcome == "failed"} <= {"computes_rows", "documented"}
    skipped = [result for result in report if result.outcome == "not applicable"]
    assert sum("see the check `computes_rows`" in result.message for result in skipped) > 10


class RegressionOnly(OneStep):
    """Rejects classification by an error that names it.

    Args:
        rate, loss: as for `OneStep`.
    """

    def task_row(self, task, key):
        if not task.query_y.is_floating_point():
            raise OptionError("this learner is for regression; classification is not supported.")
        return super().task_row(task, key)


@pytest.mark.slow
def test_a_learner_for_regression_only_is_checked_on_regression():
    report = check_learner(dataclasses.replace(LEARNERS[OneStep], factory=RegressionOnly))
    assert report.passed, report
    assert [result.check for result in report if result.outcome == "not applicable"] == ["imports_cleanly"]


# -- imports ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_import_that_seeds_global_generators_is_found(gradhomog_install):
    seeds = "import numpy, torch\ntorch.manual_seed(0)\nnumpy.random.seed(0)\n"
    name = gradhomog_install("seeding-one", seeds + textwrap.dedent(SOURCE))
    with seeded_global_generators(0):  # the check also imports the plugin in this process
        report = check_homogenizer(name, only="imports_cleanly")
    assert report.subject.endswith(" of seeding-one 1.2 (seeding_one)")
    assert report["imports_cleanly"].outcome == "failed"
    assert report["imports_cleanly"].message == "its import changes torch's generator, numpy's generator"

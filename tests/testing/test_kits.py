"""Selection of checks and plugins: names, kinds, patterns, expected failures, and errors."""

import dataclasses
import textwrap

import pytest
import torch

from gradhomog import (
    Homogenizer,
    HomogenizerSpec,
    LearnerSpec,
    OptionError,
    PluginLoadError,
    UnknownPluginError,
)
from gradhomog.registry import expression
from gradhomog.testing import check_homogenizer, check_learner, checks
from gradhomog.testing.snapshots import seeded_global_generators
from tests.testing.learners.good import GOOD as LEARNERS
from tests.testing.learners.good import OneStep


class Mean(Homogenizer):
    """The mean of the rows."""

    def mix(self, step):
        return torch.ones(step.tasks)


FINE = HomogenizerSpec(factory=Mean, summary="the mean", reference="new")


@pytest.mark.parametrize("kind", ["homogenizers", "learners"])
def test_every_check_has_a_unique_name_and_a_summary(kind):
    found = checks(kind)
    assert len({check.name for check in found}) == len(found) > 10
    assert all(check.kind == kind and check.summary.endswith(".") for check in found)
    assert found == checks(kind)
    assert checks() == checks("homogenizers")


def test_the_error_for_an_unknown_kind_lists_the_kinds():
    with pytest.raises(OptionError, match="`kind` must be one of 'homogenizers', 'learners'; got 'adapters'"):
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


@pytest.mark.parametrize(
    ("check", "name", "options", "subject"),
    [
        (check_homogenizer, "static", {"weights": [1, 2]}, "homogenizer static(weights=[1, 2]) of gradhomog "),
        (check_learner, "maml", {"inner_steps": 2}, "learner maml(inner_steps=2) of gradhomog "),
    ],
)
def test_options_are_part_of_the_text_or_given_as_a_pair(check, name, options, subject):
    for plugin in (expression.render_one(name, options), (name, options)):
        report = check(plugin, only="documented")
        assert report.subject.startswith(subject)
        assert report.passed


@pytest.mark.parametrize(
    ("check", "spec", "subject"),
    [
        (check_homogenizer, FINE, "homogenizer Mean"), (check_learner, LEARNERS[OneStep], "learner OneStep"),
    ],
)  # fmt: skip
def test_a_spec_needs_no_distribution_and_is_named_by_its_factory(check, spec, subject):
    assert check(spec, only="documented").subject == subject


@pytest.mark.parametrize(
    ("check", "plugin", "error", "message"),
    [
        (check_homogenizer, "statik", UnknownPluginError, "Did you mean 'static'"),
        (check_learner, "maml(inner_step=2)", OptionError, "has no option 'inner_step'. Did you mean 'inner_steps'"),
        (check_learner, ("maml", {"inner_steps": "few"}), OptionError, "`inner_steps` must be .*; got 'few'"),
    ],
)
def test_an_unknown_name_or_option_raises_before_any_check(check, plugin, error, message):
    with pytest.raises(error, match=message):
        check(plugin, only="documented")


@pytest.mark.parametrize("check", [check_homogenizer, check_learner])
@pytest.mark.parametrize("plugin", [3, None, ("static", 3), ("static",), (3, {}), ["static"]])
def test_other_objects_than_a_name_a_pair_or_a_spec_raise(check, plugin):
    with pytest.raises(OptionError, match=r"must be a name, a pair \(name, options\) or a [HL]\w+Spec; got "):
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


# -- plugins that cannot be made, or only for some tasks -------------------------------------------------------------


def needs_a_transformer(encoder, head, homogenizers=None):
    """A factory that rejects the small convolutional network."""
    raise OptionError("`encoder` must have attention heads; found none.")


def not_a_learner(encoder, head, homogenizers=None):
    """A factory that returns no learner."""
    return encoder


@pytest.mark.parametrize(
    ("check", "plugin", "failing", "message"),
    [
        (
            check_learner, LearnerSpec(needs_a_transformer, "s", "r"), "computes_rows",
            "OptionError: `encoder` must have attention heads",
        ),
        (
            check_learner, LearnerSpec(not_a_learner, "s", "r"), "computes_rows",
            "PluginRunError: learner not_a_learner must make a gradhomog.Learner; got Sequential.",
        ),
    ],
)  # fmt: skip
def test_a_plugin_that_cannot_be_made_fails_one_check_and_others_are_not_applicable(check, plugin, failing, message):
    report = check(plugin)
    assert message in report[failing].message
    assert [result.check for result in report if result.outcome == "failed" and result.check != "documented"] == [
        failing
    ]
    skipped = [result for result in report if result.outcome == "not applicable"]
    assert sum(f"see the check `{failing}`" in result.message for result in skipped) > 10


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

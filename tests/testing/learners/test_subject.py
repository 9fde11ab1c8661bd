"""The learner under check: its name and options, and errors for learners that cannot be made."""

from __future__ import annotations

import pytest

from gradhomog import LearnerSpec, OptionError, UnknownPluginError
from gradhomog.testing import check_learner
from tests.testing.learners.good import GOOD, OneStep


@pytest.mark.parametrize("plugin", ["maml(inner_steps=2)", ("maml", {"inner_steps": 2})])
def test_options_are_part_of_the_text_or_given_as_a_pair(plugin):
    report = check_learner(plugin, only="computes_rows")
    assert report.subject.startswith("learner maml(inner_steps=2) of gradhomog ")
    assert report.passed


def test_a_spec_needs_no_distribution():
    assert check_learner(GOOD, only="documented").subject == "learner OneStep"


@pytest.mark.parametrize(
    ("plugin", "error", "message"),
    [
        ("mamml", UnknownPluginError, "Did you mean 'maml'"),
        ("maml(inner_step=2)", OptionError, "has no option 'inner_step'. Did you mean 'inner_steps'"),
        (("maml", {"inner_steps": "two"}), OptionError, "`inner_steps` must be an integer ≥ 0; got 'two'"),
        (3, OptionError, r"a name, a pair \(name, options\) or a LearnerSpec; got 3"),
    ],
)
def test_an_unknown_name_or_option_raises_before_any_check(plugin, error, message):
    with pytest.raises(error, match=message):
        check_learner(plugin)


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
def test_a_learner_that_cannot_be_made_fails_one_check_and_the_others_are_not_applicable(factory, message):
    report = check_learner(LearnerSpec(factory=factory, summary="s", reference="r"))
    assert message in report["computes_rows"].message
    outcomes = {result.check: result.outcome for result in report}
    assert {name for name, outcome in outcomes.items() if outcome == "failed"} == {"computes_rows"}
    assert outcomes["rows_independent_of_batch"] == "not applicable"
    assert "see the check `computes_rows`" in report["rows_independent_of_batch"].message


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
    spec = LearnerSpec(factory=RegressionOnly, summary="s", reference="r", traits={"exact_rows"})
    report = check_learner(spec)
    assert report.passed, report
    assert {result.outcome for result in report} == {"passed", "reported", "not applicable"}
    not_applicable = {result.check for result in report if result.outcome == "not applicable"}
    assert not_applicable == {"imports_cleanly"}

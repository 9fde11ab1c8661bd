"""How a learner that is checked is named, and what is said of one that cannot be checked."""

from __future__ import annotations

import pytest

from gradhomog import LearnerSpec, OptionError, UnknownPluginError
from gradhomog.testing import check_learner
from tests.testing.learners.good import GOOD, OneStep


@pytest.mark.parametrize("what", ["maml(inner_steps=2)", ("maml", {"inner_steps": 2})])
def test_options_stand_in_the_text_or_beside_it(what):
    report = check_learner(what, only="forms_rows")
    assert report.subject.startswith("learner maml(inner_steps=2) of gradhomog ")
    assert report.passed


def test_a_spec_needs_no_distribution():
    assert check_learner(GOOD, only="documented").subject == "learner OneStep"


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("mamml", UnknownPluginError, "Did you mean 'maml'"),
        ("maml(inner_step=2)", OptionError, "has no option 'inner_step'. Did you mean 'inner_steps'"),
        (("maml", {"inner_steps": "two"}), OptionError, "`inner_steps` must be an integer; got 'two'"),
        (3, OptionError, r"a name, a pair \(name, options\) or a LearnerSpec; got 3"),
    ],
)
def test_what_does_not_exist_is_told_before_any_check(what, error, says):
    with pytest.raises(error, match=says):
        check_learner(what)


def needs_a_transformer(encoder, head, homogenizers=None):
    """A factory that no network of convolutions can be given to."""
    raise OptionError("`encoder` must have attention heads; found none.")


def not_a_learner(encoder, head, homogenizers=None):
    """A factory that makes something else."""
    return encoder


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (needs_a_transformer, "OptionError: `encoder` must have attention heads"),
        (not_a_learner, "PluginRunError: learner not_a_learner must make a gradhomog.Learner; it made a Sequential."),
    ],
)
def test_one_that_cannot_be_made_fails_one_check_and_the_others_do_not_apply(factory, says):
    report = check_learner(LearnerSpec(factory=factory, summary="s", reference="r"))
    assert says in report["forms_rows"].message
    outcomes = {result.check: result.outcome for result in report}
    assert {name for name, outcome in outcomes.items() if outcome == "failed"} == {"forms_rows"}
    assert outcomes["rows_independent_of_batch"] == "not applicable"
    assert "see the check `forms_rows`" in report["rows_independent_of_batch"].message


class RegressionOnly(OneStep):
    """Refuses classes, in words.

    Args:
        rate, loss: as of `OneStep`.
    """

    def task_row(self, task, key):
        if not task.query_y.is_floating_point():
            raise OptionError("this learner is for regression; classification is not served.")
        return super().task_row(task, key)


@pytest.mark.slow
def test_one_that_serves_regression_only_is_checked_on_regression():
    spec = LearnerSpec(factory=RegressionOnly, summary="s", reference="r", traits={"exact_rows"})
    report = check_learner(spec)
    assert report.passed, report
    assert {result.outcome for result in report} == {"passed", "reported", "not applicable"}
    not_applicable = {result.check for result in report if result.outcome == "not applicable"}
    assert not_applicable == {"imports_cleanly"}

"""How a domain that is checked is named, and what is said of one that cannot be checked."""

from __future__ import annotations

import pytest

from gradhomog import DomainSpec, OptionError, UnknownPluginError
from gradhomog.testing import check_domain
from tests.testing.domains.good import BLOTS


@pytest.mark.parametrize("what", ["functions:line(noise=0.5)", ("functions:line", {"noise": 0.5})])
def test_options_stand_in_the_text_or_beside_it(what):
    report = check_domain(what, only="draws_tasks")
    assert report.subject.startswith("domain functions:line(noise=0.5) of gradhomog ")
    assert report.passed


def test_without_a_variant_the_first_is_checked():
    assert check_domain("functions", only="documented").subject.startswith("domain functions:sinusoid of gradhomog ")


def test_a_spec_needs_no_distribution():
    assert check_domain(BLOTS, only="draws_tasks").subject == "domain Blots:one"


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("function:line", UnknownPluginError, "Did you mean 'functions'"),
        ("functions:lime", OptionError, "no variant 'lime'. Did you mean 'functions:line'"),
        ("functions:line(noize=1)", OptionError, "has no option 'noize'. Did you mean 'noise'"),
        (("functions:line", {"noise": "much"}), OptionError, "`noise` must be a number; got 'much'"),
        (3, OptionError, r"a name, a pair \(name, options\) or a DomainSpec; got 3"),
    ],
)
def test_what_does_not_exist_is_told_before_any_check(what, error, says):
    with pytest.raises(error, match=says):
        check_domain(what)


def not_a_domain(variant, *, size=28):
    """A factory that makes something else."""
    return variant


def test_one_that_cannot_be_made_fails_one_check_and_the_others_do_not_apply():
    report = check_domain(DomainSpec(factory=not_a_domain, summary="s", reference="r"))
    assert "PluginRunError: domain not_a_domain must make a gradhomog.Domain" in report["draws_tasks"].message
    outcomes = {result.check: result.outcome for result in report}
    assert {name for name, outcome in outcomes.items() if outcome == "failed"} == {"draws_tasks"}
    assert outcomes["targets_fit"] == "not applicable"
    assert "see the check `draws_tasks`" in report["targets_fit"].message


def test_files_that_are_not_there_are_told_once(tmp_path):
    report = check_domain(f"images:{tmp_path}/birds.npz")
    assert "birds.npz: there is no such file" in report["draws_tasks"].message
    assert [result.check for result in report if result.outcome == "failed"] == ["draws_tasks"]

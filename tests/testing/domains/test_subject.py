"""The domain under check: its name and options, and errors for domains that cannot be made."""

from __future__ import annotations

import pytest

from gradhomog import DomainSpec, OptionError, UnknownPluginError
from gradhomog.testing import check_domain
from tests.testing.domains.good import BLOTS


@pytest.mark.parametrize("plugin", ["functions:line(noise=0.5)", ("functions:line", {"noise": 0.5})])
def test_options_are_part_of_the_text_or_given_as_a_pair(plugin):
    report = check_domain(plugin, only="draws_tasks")
    assert report.subject.startswith("domain functions:line(noise=0.5) of gradhomog ")
    assert report.passed


def test_the_first_variant_is_the_default():
    assert check_domain("functions", only="documented").subject.startswith("domain functions:sinusoid of gradhomog ")


def test_a_spec_needs_no_distribution():
    assert check_domain(BLOTS, only="draws_tasks").subject == "domain Blots:one"


@pytest.mark.parametrize(
    ("plugin", "error", "message"),
    [
        ("function:line", UnknownPluginError, "Did you mean 'functions'"),
        ("functions:lime", OptionError, "no variant 'lime'. Did you mean 'functions:line'"),
        ("functions:line(noize=1)", OptionError, "has no option 'noize'. Did you mean 'noise'"),
        (("functions:line", {"noise": "much"}), OptionError, "`noise` must be a number ≥ 0; got 'much'"),
        (3, OptionError, r"a name, a pair \(name, options\) or a DomainSpec; got 3"),
    ],
)
def test_an_unknown_name_variant_or_option_raises_before_any_check(plugin, error, message):
    with pytest.raises(error, match=message):
        check_domain(plugin)


def not_a_domain(variant, *, size=28):
    """A factory that returns no domain."""
    return variant


def test_a_domain_that_cannot_be_made_fails_one_check_and_the_others_are_not_applicable():
    report = check_domain(DomainSpec(factory=not_a_domain, summary="s", reference="r"))
    assert "PluginRunError: domain not_a_domain must make a gradhomog.Domain" in report["draws_tasks"].message
    outcomes = {result.check: result.outcome for result in report}
    assert {name for name, outcome in outcomes.items() if outcome == "failed"} == {"draws_tasks"}
    assert outcomes["targets_fit"] == "not applicable"
    assert "see the check `draws_tasks`" in report["targets_fit"].message


def test_missing_files_are_reported_once(tmp_path):
    report = check_domain(f"images:{tmp_path}/birds.npz")
    assert "birds.npz: there is no such file" in report["draws_tasks"].message
    assert [result.check for result in report if result.outcome == "failed"] == ["draws_tasks"]

"""The kit as somebody's pytest tests: which there are, what they are called, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from gradhomog import OptionError
from gradhomog.testing import parametrize_with_checks

pytestmark = pytest.mark.slow

STRANGER = '''
import pytest, torch
from gradhomog import Homogenizer, HomogenizerSpec
from gradhomog.testing import checking, parametrize_with_checks

class Total(Homogenizer):
    """The sum of the rows."""
    def mix(self, step):
        return torch.full((step.tasks,), float(step.tasks))

FINE = HomogenizerSpec(factory=Total, summary="the sum", reference="new")
DRAWS = HomogenizerSpec(factory=Total, summary="the sum", reference="new", traits={"stochastic"})
DRAFT = HomogenizerSpec(factory=Total, summary="", reference="new")

@parametrize_with_checks(["static", ("static", {"weights": [1, 2]}), FINE], only=["documented", "half_*"])
def test_names(check):
    check()

@parametrize_with_checks(["static", DRAWS], only=["documented", "orthogonal", "stochastic"])
def test_claims(check):
    check()

@parametrize_with_checks([FINE], only="identical_rows")
def test_fault(check):
    check()

@parametrize_with_checks([FINE, DRAFT], only="documented", expected_failures={"documented": "a draft"})
def test_expected(check):
    check()

@parametrize_with_checks([FINE], only="imports_cleanly")
def test_nothing_to_check(check):
    check()

@parametrize_with_checks([FINE], only="imports_cleanly", expected_failures={"imports_cleanly": "slow"})
def test_nothing_to_check_though_expected(check):
    check()

@parametrize_with_checks(["broken", "statik", "static(weight=1)", 3, "static"], only="documented")
def test_unusable(check):
    check()

@parametrize_with_checks(["broken"], only="documented", expected_failures={"documented": "a draft"})
def test_unusable_though_expected(check):
    check()

@parametrize_with_checks(["fomaml(inner_steps=2)"], kind="learners", only="documented")
def test_learner(check):
    check()

@parametrize_with_checks(["functions:sinusoid"], kind="domains", only="documented")
def test_domain(check):
    check()

@pytest.mark.parametrize("again", [1, 2])
@parametrize_with_checks(["static"], only="documented")
def test_with_other_parameters(again, check):
    assert again and check() is None
'''


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """By name of the test, how it ended and what was said, of one run of the stranger's suite."""
    folder = tmp_path_factory.mktemp("stranger")
    info = folder / "site" / "broken_one-1.2.dist-info"
    info.mkdir(parents=True)
    (folder / "site" / "broken_one.py").write_text("import no_such_module", encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-one\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[gradhomog.homogenizers]\nbroken = broken_one\n", encoding="utf-8")
    (folder / "test_stranger.py").write_text(STRANGER, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml", "."]
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr  # some fail, and none of them while it is collected
    found = {}
    for case in ElementTree.parse(folder / "found.xml").iter("testcase"):
        told = next(iter(case), None)
        outcome = "passed" if told is None else told.get("type") or told.tag
        found[case.get("name")] = outcome, "" if told is None else f"{told.get('message')}\n{told.text}"
    return found


def outcomes(ended, test):
    return {
        name.partition("[")[2].removesuffix("]"): outcome
        for name, (outcome, _) in ended.items()
        if name.partition("[")[0] == test
    }


def test_a_test_is_named_by_plugin_with_options_and_check(ended):
    assert outcomes(ended, "test_names") == {
        "static-documented": "passed", "static-half_precision": "passed",
        "static(weights=[1, 2])-documented": "passed", "static(weights=[1, 2])-half_precision": "failure",
        "Total-documented": "passed", "Total-half_precision": "passed",
    }  # fmt: skip


def test_there_is_a_test_of_what_is_asked_of_all_and_of_what_the_plugin_claims(ended):
    assert outcomes(ended, "test_claims") == {
        "static-documented": "passed", "Total-documented": "passed", "Total-stochastic": "failure",
    }  # fmt: skip


def test_a_failure_tells_plugin_check_fault_input_and_what_was_asked(ended):
    outcome, said = ended["test_fault[Total-identical_rows]"]
    assert outcome == "failure"
    assert "CheckFailure: homogenizer Total: identical_rows: " in said
    assert "\njacobian = [[" in said
    assert "gradhomog/testing/parametrizing.py" not in said


def test_an_expected_failure_is_strict_in_both_ways(ended):
    assert outcomes(ended, "test_expected") == {"Total-documented0": "failure", "Total-documented1": "pytest.xfail"}
    assert "[XPASS(strict)] a draft" in ended["test_expected[Total-documented0]"][1]
    assert "a draft" in ended["test_expected[Total-documented1]"][1]


def test_where_there_is_nothing_to_check_no_test_fails_and_none_is_told_to_be_taken_out(ended):
    assert outcomes(ended, "test_nothing_to_check") == {"Total-imports_cleanly": "passed"}
    outcome, said = ended["test_nothing_to_check_though_expected[Total-imports_cleanly]"]
    assert outcome == "pytest.xfail"
    assert "not applicable: a spec without a distribution" in said


def test_a_plugin_that_cannot_be_made_fails_and_says_why_and_the_others_are_tested(ended):
    found = outcomes(ended, "test_unusable")
    assert found.pop("static-documented") == "passed"
    assert found == dict.fromkeys(("broken-loads", "statik-loads", "static(weight=1)-loads", "plugin-loads"), "failure")
    said = {name: ended[f"test_unusable[{name}]"][1] for name in found}
    assert "PluginLoadError: homogenizer 'broken' of broken-one 1.2 (broken_one)" in said["broken-loads"]
    assert "no_such_module" in said["broken-loads"]
    assert "Did you mean 'static'?" in said["statik-loads"]
    assert "Did you mean 'weights'?" in said["static(weight=1)-loads"]
    assert "a name, a pair (name, options) or a HomogenizerSpec; got 3" in said["plugin-loads"]


def test_not_to_be_made_is_never_expected(ended):
    assert outcomes(ended, "test_unusable_though_expected") == {"broken-loads": "failure"}


def test_learners_and_domains_are_tested_likewise(ended):
    assert outcomes(ended, "test_learner") == {"fomaml(inner_steps=2)-documented": "passed"}
    assert outcomes(ended, "test_domain") == {"functions:sinusoid-documented": "passed"}


def test_the_tests_may_have_parameters_of_their_own(ended):
    assert len(outcomes(ended, "test_with_other_parameters")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"what": "static"}, r"`what` must be several plugins; got the text 'static'\. Write \['static'\]\."),
        ({"what": ["static"], "only": "documentd"}, "'documentd' matches none of: documented, "),
        ({"what": ["static"], "kind": "homogenizer"}, "`kind` must be one of 'homogenizers', "),
        ({"what": ["static"], "expected_failures": {"cost": " "}}, "must give the reason why cost fails"),
        ({"what": ["static"], "expected_failures": {"costs": "slow"}}, r"Did you mean 'cost'\?"),
    ],
)
def test_what_cannot_be_meant_is_refused_while_tests_are_collected(arguments, message):
    with pytest.raises(OptionError, match=message):
        parametrize_with_checks(**arguments)

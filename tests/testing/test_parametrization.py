"""`parametrize_with_checks` in a test suite of a plugin author: tests, names and outcomes."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from gradhomog import OptionError
from gradhomog.testing import parametrize_with_checks

pytestmark = pytest.mark.slow

AUTHOR_SUITE = '''
import pytest, torch
from gradhomog import Homogenizer, HomogenizerSpec
from gradhomog.testing import parametrize_with_checks

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

@parametrize_with_checks(
    ["broken", "statik", "static(weight=1)", 3, "static"], only="documented", expected_failures={"documented": "draft"}
)
def test_unusable(check):
    check()

@parametrize_with_checks(["fomaml(inner_steps=2)"], kind="learners", only="documented")
def test_learner(check):
    check()

@pytest.mark.parametrize("again", [1, 2])
@parametrize_with_checks(["maml"], kind="learners", only="documented")
def test_twice(check, again):
    check()

'''


@pytest.fixture(scope="module")
def suite_results(tmp_path_factory):
    """Outcome and message by test name, of one run of the suite."""
    folder = tmp_path_factory.mktemp("author_suite")
    info = folder / "site" / "broken_one-1.2.dist-info"
    info.mkdir(parents=True)
    (folder / "site" / "broken_one.py").write_text("import no_such_module", encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-one\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[gradhomog.homogenizers]\nbroken = broken_one\n", encoding="utf-8")
    (folder / "test_author_suite.py").write_text(AUTHOR_SUITE, encoding="utf-8")
    # A process, because pytest runs once per process.
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml", "."]
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    # 1: tests failed; a failed collection returns 2
    assert completed.returncode == 1, completed.stdout + completed.stderr
    results = {}
    for case in ElementTree.parse(folder / "found.xml").iter("testcase"):
        element = next(iter(case), None)
        outcome = "passed" if element is None else element.get("type") or element.tag
        message = "" if element is None else f"{element.get('message')}\n{element.text}"
        results[case.get("name")] = outcome, message
    return results


def outcomes(suite_results, test):
    return {
        name.partition("[")[2].removesuffix("]"): outcome
        for name, (outcome, _) in suite_results.items()
        if name.partition("[")[0] == test
    }


def test_a_test_id_consists_of_plugin_options_and_check(suite_results):
    assert outcomes(suite_results, "test_names") == {
        "static-documented": "passed", "static-half_precision": "passed",
        "static(weights=[1, 2])-documented": "passed", "static(weights=[1, 2])-half_precision": "failure",
        "Total-documented": "passed", "Total-half_precision": "passed",
    }  # fmt: skip


def test_only_required_checks_and_checks_of_claimed_traits_become_tests(suite_results):
    assert outcomes(suite_results, "test_claims") == {
        "static-documented": "passed", "Total-documented": "passed", "Total-stochastic": "failure",
    }  # fmt: skip


def test_a_failure_message_contains_plugin_check_and_input(suite_results):
    outcome, message = suite_results["test_fault[Total-identical_rows]"]
    assert outcome == "failure"
    assert "CheckFailure: homogenizer Total: identical_rows: " in message
    assert "\njacobian = [[" in message
    assert "gradhomog/testing/parametrization.py" not in message


def test_an_expected_failure_is_strict_in_both_ways(suite_results):
    expected = {"Total-documented0": "failure", "Total-documented1": "pytest.xfail"}
    assert outcomes(suite_results, "test_expected") == expected
    assert "[XPASS(strict)] a draft" in suite_results["test_expected[Total-documented0]"][1]
    assert "a draft" in suite_results["test_expected[Total-documented1]"][1]


def test_a_check_that_is_not_applicable_does_not_fail(suite_results):
    assert outcomes(suite_results, "test_nothing_to_check") == {"Total-imports_cleanly": "passed"}
    outcome, message = suite_results["test_nothing_to_check_though_expected[Total-imports_cleanly]"]
    assert outcome == "pytest.xfail"
    assert "not applicable: a spec without a distribution" in message


def test_a_plugin_that_cannot_be_made_fails_with_its_error_and_other_plugins_are_tested(suite_results):
    found = outcomes(suite_results, "test_unusable")
    assert found.pop("static-documented") == "failure"  # it passes although it is expected to fail
    assert found == dict.fromkeys(("broken-loads", "statik-loads", "static(weight=1)-loads", "plugin-loads"), "failure")
    messages = {name: suite_results[f"test_unusable[{name}]"][1] for name in found}
    assert "PluginLoadError: homogenizer 'broken' of broken-one 1.2 (broken_one)" in messages["broken-loads"]
    assert "no_such_module" in messages["broken-loads"]
    assert "Did you mean 'static'?" in messages["statik-loads"]
    assert "Did you mean 'weights'?" in messages["static(weight=1)-loads"]
    assert "a name, a pair (name, options) or a HomogenizerSpec; got 3" in messages["plugin-loads"]


def test_learners_become_tests(suite_results):
    assert outcomes(suite_results, "test_learner") == {"fomaml(inner_steps=2)-documented": "passed"}
    assert outcomes(suite_results, "test_twice") == dict.fromkeys(("maml-documented-1", "maml-documented-2"), "passed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"plugins": "static"}, r"`plugins` must be a sequence .*; got the string 'static'\. Write \['static'\]\."),
        ({"plugins": ["static"], "only": "documentd"}, "'documentd' matches none of: documented, "),
    ],
)
def test_invalid_arguments_raise_at_collection(arguments, message):
    with pytest.raises(OptionError, match=message):
        parametrize_with_checks(**arguments)

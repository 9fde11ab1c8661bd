"""The outcome of a check for every result of its function, and reports as a table and as JSON values."""

import json
import math

import pytest
import torch
from hypothesis import strategies as st

from gradhomog import OptionError, PluginRunError
from gradhomog.testing import Check, CheckFailure, CheckReport, CheckResult
from gradhomog.testing.check_results import SHRINKING, NotApplicable, run
from gradhomog.testing.property_search import for_all

REASON = "the paper wants it so"


class Claiming:
    """A subject that has only claims."""

    def __init__(self, *claims: str) -> None:
        self.claims = frozenset(claims)


ALL = (None, Claiming())
CLAIMED = ("smooth", Claiming("smooth", "short"))
UNCLAIMED = ("smooth", Claiming("short"))


def passes(_):
    """A check whose property holds."""


def fails(_):
    raise CheckFailure("off by 2", jacobian=torch.tensor([[1.0, 0.0]]))


def raises_plugin_error(_):
    raise PluginRunError("homogenizer 'x' raised in `mix`.")


def crashes(_):
    raise ZeroDivisionError("by zero\nand three lines more")


def is_not_applicable(_):
    raise NotApplicable("it has no `transform`")


def result(function, binding, reason=None) -> CheckResult:
    claim, subject = binding
    return run(Check("roundness", "homogenizers", claim, function), subject, reason)


@pytest.mark.parametrize(
    ("function", "binding", "outcome", "message"),
    [
        (passes, ALL, "passed", ""),
        (passes, CLAIMED, "passed", ""),
        (passes, UNCLAIMED, "held", "not claimed: 'smooth' could be added to its traits"),
        (fails, ALL, "failed", "off by 2"),
        (fails, UNCLAIMED, "not held", "off by 2"),
        (raises_plugin_error, ALL, "failed", "PluginRunError: homogenizer 'x' raised in `mix`."),
        (crashes, ALL, "failed", "ZeroDivisionError: by zero"),
        (is_not_applicable, UNCLAIMED, "not applicable", "it has no `transform`"),
    ],
)
def test_the_outcome_depends_on_the_result_and_on_the_claim(function, binding, outcome, message):
    found = result(function, binding)
    assert (found.check, found.outcome, found.message) == ("roundness", outcome, message)
    assert found.example == ({"jacobian": [[1.0, 0.0]]} if function is fails else {})
    assert 0 <= found.seconds < 1


@pytest.mark.parametrize(
    ("function", "binding", "outcome", "message"),
    [
        (fails, ALL, "expected", f"{REASON} (off by 2)"),
        (passes, ALL, "failed", f"expected to fail ({REASON}), but does not. Remove it"),
        (fails, UNCLAIMED, "failed", "'smooth' is not claimed. Remove it from `expected_failures`."),
        (is_not_applicable, ALL, "not applicable", "it has no `transform`"),
    ],
)
def test_an_expected_failure_must_fail_or_be_not_applicable(function, binding, outcome, message):
    found = result(function, binding, REASON)
    assert found.outcome == outcome
    assert message in found.message
    assert bool(found.example) == (function is fails)


@pytest.mark.parametrize("exception", [KeyboardInterrupt, pytest.fail.Exception])
def test_exceptions_that_stop_the_process_stop_a_check_and_its_search(exception):
    def interrupted(_):
        @for_all(number=st.integers())
        def _(number):
            raise exception("enough")

    with pytest.raises(exception, match="enough"):
        result(interrupted, UNCLAIMED)
    assert SHRINKING.get() is True


def test_summary_and_explanation_come_from_the_docstring():
    def roundness(subject):
        """It is round,
        all over.

        Corners hurt.
        """

    check = Check("roundness", "homogenizers", None, roundness)
    assert check.summary == "It is round, all over."
    assert check.explanation.endswith("\n\nCorners hurt.")


def test_an_example_consists_of_json_values():
    failure = CheckFailure(
        "no",
        rows=torch.ones(2, 1),
        dtype=torch.float16,
        positions=(1, True),
        named={3: torch.tensor(0.5)},
        error=OptionError,
        other=object(),
    )
    assert failure.example == {
        "other": "<object object>",  # without the memory address
        "rows": [[1.0], [1.0]], "dtype": "torch.float16", "positions": [1, True], "named": {"3": 0.5},
        "error": "<class 'gradhomog.errors.OptionError'>",
    }  # fmt: skip


def test_nan_and_infinity_are_null_in_a_record_and_unchanged_in_the_example():
    def fails_with_nan(_):
        raise CheckFailure("not finite", direction=torch.tensor([[1.0, math.nan]]), size={"most": math.inf})

    found = result(fails_with_nan, ALL)
    assert math.isnan(found.example["direction"][0][1])
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["example"] == {"direction": [[1.0, None]], "size": {"most": None}}


RESULTS = (
    CheckResult("documented", "passed", seconds=0.26),
    CheckResult("dict_rows", "failed", "off by 2", {"jacobian": [[1.0, 0.0]], "dtype": "torch.float16"}, 0.50004),
    CheckResult("half_precision", "expected", "eleven bits " * 15),
    CheckResult("stochastic", "held", "not claimed"),
    CheckResult("orthogonal", "not held", "no"),
    CheckResult("devices", "not applicable", "no other", seconds=1.0),
)
REPORT = CheckReport("homogenizer x of y 1.0 (x)", RESULTS)


TABLE = f"""\
homogenizer x of y 1.0 (x)

  ✓ documented      passed
  ✗ dict_rows       failed
      off by 2
      jacobian = [[1.0, 0.0]]
      dtype = "torch.float16"
  x half_precision  expected
      {("eleven bits " * 9).strip()} eleven
      {("bits eleven " * 5).strip()} bits
  + stochastic      held
      not claimed
  · orthogonal      not held
      no
  - devices         not applicable
      no other

1 passed, 1 failed, 1 expected, 1 held, 1 not held, 1 not applicable; 1.8 s"""


def test_the_table_has_each_result_with_its_mark_its_message_and_its_example_and_ends_with_counts():
    assert str(REPORT) == TABLE


def test_a_report_is_a_collection_of_results_by_name_that_passes_unless_one_failed():
    assert (len(REPORT), tuple(REPORT), REPORT["dict_rows"]) == (6, RESULTS, RESULTS[1])
    with pytest.raises(KeyError, match="dict_row"):
        REPORT["dict_row"]
    assert not REPORT.passed
    assert CheckReport("x", tuple(result for result in RESULTS if result.outcome != "failed")).passed


def test_a_long_word_is_not_broken():
    word = "w" * 150
    assert f"      {word}" in str(CheckReport("x", (CheckResult("c", "failed", f"see {word}"),))).splitlines()


def test_the_record_of_a_report_consists_of_json_values():
    record = json.loads(json.dumps(REPORT.record(), allow_nan=False))
    assert record == REPORT.record()
    assert (record["subject"], record["passed"]) == (REPORT.subject, False)
    assert [entry["check"] for entry in record["results"]] == [result.check for result in RESULTS]
    assert record["results"][1] == {
        "check": "dict_rows", "outcome": "failed", "message": "off by 2",
        "example": {"jacobian": [[1.0, 0.0]], "dtype": "torch.float16"}, "seconds": 0.5,
    }  # fmt: skip


def test_numbers_of_an_example_are_printed_with_four_digits_and_recorded_with_all():
    example = {"jacobian": [[1 / 3, 1e-18 / 3]], "options": {"size": 3, "rate": 2 / 3}, "dtype": "torch.float32"}
    report = CheckReport("x", (CheckResult("c", "not held", "", example),))
    assert "jacobian = [[0.3333, 3.333e-19]]" in str(report)
    assert 'options = {"size": 3, "rate": 0.6667}' in str(report)
    assert report.record()["results"][0]["example"] == example

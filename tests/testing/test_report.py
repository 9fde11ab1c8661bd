"""A `CheckReport` as a table, as JSON values, and as a collection of results."""

from __future__ import annotations

import json

import pytest

from gradhomog.testing import CheckReport, CheckResult

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


def test_a_long_message_is_wrapped_and_a_long_word_is_not_broken():
    assert max(len(line) for line in str(REPORT).splitlines()) <= 120
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

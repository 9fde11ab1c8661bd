"""The outcome of a check for every result of its function, with and without claim and expected failure."""

from __future__ import annotations

import json
import math

import pytest
import torch

from gradhomog import OptionError, PluginRunError
from gradhomog.testing import Check, CheckFailure, CheckResult
from gradhomog.testing.check_results import SHRINKING, NotApplicable, run

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
        (fails, CLAIMED, "failed", "off by 2"),
        (fails, UNCLAIMED, "not held", "off by 2"),
        (raises_plugin_error, ALL, "failed", "PluginRunError: homogenizer 'x' raised in `mix`."),
        (raises_plugin_error, UNCLAIMED, "not held", "PluginRunError: homogenizer 'x' raised in `mix`."),
        (crashes, ALL, "failed", "ZeroDivisionError: by zero"),
        (crashes, UNCLAIMED, "not held", "ZeroDivisionError: by zero"),
        (is_not_applicable, ALL, "not applicable", "it has no `transform`"),
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
        (crashes, CLAIMED, "expected", f"{REASON} (ZeroDivisionError: by zero)"),
        (passes, ALL, "failed", f"expected to fail ({REASON}), but does not. Remove it"),
        (passes, CLAIMED, "failed", f"expected to fail ({REASON}), but does not. Remove it"),
        (fails, UNCLAIMED, "failed", "'smooth' is not claimed. Remove it from `expected_failures`."),
        (passes, UNCLAIMED, "failed", "'smooth' is not claimed. Remove it from `expected_failures`."),
        (is_not_applicable, ALL, "not applicable", "it has no `transform`"),
    ],
)
def test_an_expected_failure_must_fail_or_be_not_applicable(function, binding, outcome, message):
    found = result(function, binding, REASON)
    assert found.outcome == outcome
    assert message in found.message
    assert bool(found.example) == (function is fails)


@pytest.mark.parametrize(("binding", "shrinking"), [(ALL, True), (CLAIMED, True), (UNCLAIMED, False)])
def test_inputs_are_simplified_only_for_binding_checks(binding, shrinking):
    values = []

    def reads_shrinking(_):
        values.append(SHRINKING.get())
        raise CheckFailure("no")

    result(reads_shrinking, binding)
    assert values == [shrinking]
    assert SHRINKING.get() is True


@pytest.mark.parametrize("exception", [KeyboardInterrupt, pytest.fail.Exception])
def test_exceptions_that_stop_the_process_are_not_failures(exception):
    def interrupted(_):
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

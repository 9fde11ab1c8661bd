"""The outcome of a check, for every way in which its function can end, claimed or not, expected to fail or not."""

from __future__ import annotations

import json
import math

import pytest
import torch

from gradhomog import OptionError, PluginRunError
from gradhomog.testing import Check, CheckFailure, CheckResult
from gradhomog.testing.checking import SHRINKING, NotApplicable, plain, run

REASON = "the paper wants it so"


class Claiming:
    """A subject, which is nothing but its claims."""

    def __init__(self, *claims: str) -> None:
        self.claims = frozenset(claims)


ALL = (None, Claiming())
CLAIMED = ("smooth", Claiming("smooth", "short"))
UNCLAIMED = ("smooth", Claiming("short"))


def keeps(_):
    """Nothing is wrong."""


def breaks(_):
    raise CheckFailure("off by 2", jacobian=torch.tensor([[1.0, 0.0]]))


def blames(_):
    raise PluginRunError("homogenizer 'x' raised in `mix`.")


def crashes(_):
    raise ZeroDivisionError("by zero\nand three lines more")


def passes_over(_):
    raise NotApplicable("it has no `transform`")


def measures(_):
    return "0.3 ms"


def result(function, binding, reason=None) -> CheckResult:
    claim, subject = binding
    return run(Check("roundness", "homogenizers", claim, function), subject, reason)


@pytest.mark.parametrize(
    ("function", "binding", "outcome", "message"),
    [
        (keeps, ALL, "passed", ""),
        (keeps, CLAIMED, "passed", ""),
        (keeps, UNCLAIMED, "held", "not claimed: 'smooth' could be added to its traits"),
        (breaks, ALL, "failed", "off by 2"),
        (breaks, CLAIMED, "failed", "off by 2"),
        (breaks, UNCLAIMED, "not held", "off by 2"),
        (blames, ALL, "failed", "PluginRunError: homogenizer 'x' raised in `mix`."),
        (blames, UNCLAIMED, "not held", "PluginRunError: homogenizer 'x' raised in `mix`."),
        (crashes, ALL, "failed", "ZeroDivisionError: by zero"),
        (crashes, UNCLAIMED, "not held", "ZeroDivisionError: by zero"),
        (passes_over, ALL, "not applicable", "it has no `transform`"),
        (passes_over, UNCLAIMED, "not applicable", "it has no `transform`"),
        (measures, ALL, "reported", "0.3 ms"),
        (measures, UNCLAIMED, "reported", "0.3 ms"),
    ],
)
def test_the_outcome_follows_from_how_it_ends_and_whether_it_binds(function, binding, outcome, message):
    found = result(function, binding)
    assert (found.check, found.outcome, found.message) == ("roundness", outcome, message)
    assert found.example == ({"jacobian": [[1.0, 0.0]]} if function is breaks else {})
    assert 0 <= found.seconds < 1


@pytest.mark.parametrize(
    ("function", "binding", "outcome", "words"),
    [
        (breaks, ALL, "expected", f"{REASON} (off by 2)"),
        (crashes, CLAIMED, "expected", f"{REASON} (ZeroDivisionError: by zero)"),
        (keeps, ALL, "failed", f"it was expected to fail ({REASON}), but does not. Remove it"),
        (keeps, CLAIMED, "failed", f"it was expected to fail ({REASON}), but does not. Remove it"),
        (measures, ALL, "failed", f"it was expected to fail ({REASON}), but does not. Remove it"),
        (breaks, UNCLAIMED, "failed", "'smooth' is not claimed. Remove it from `expected_failures`."),
        (keeps, UNCLAIMED, "failed", "'smooth' is not claimed. Remove it from `expected_failures`."),
        (passes_over, ALL, "not applicable", "it has no `transform`"),
    ],
)
def test_an_expected_failure_must_fail_unless_there_is_nothing_to_check(function, binding, outcome, words):
    found = result(function, binding, REASON)
    assert found.outcome == outcome
    assert words in found.message
    assert bool(found.example) == (function is breaks)


@pytest.mark.parametrize(("binding", "worth_it"), [(ALL, True), (CLAIMED, True), (UNCLAIMED, False)])
def test_an_input_is_worth_simplifying_only_where_it_would_be_a_fault(binding, worth_it):
    seen = []

    def looks(_):
        seen.append(SHRINKING.get())
        raise CheckFailure("no")

    result(looks, binding)
    assert seen == [worth_it]
    assert SHRINKING.get() is True


@pytest.mark.parametrize("end", [KeyboardInterrupt, pytest.fail.Exception])
def test_what_ends_the_whole_run_is_not_taken_for_a_fault(end):
    def interrupted(_):
        raise end("enough")

    with pytest.raises(end, match="enough"):
        result(interrupted, UNCLAIMED)
    assert SHRINKING.get() is True


def test_a_check_explains_itself_by_its_docstring():
    def roundness(subject):
        """It is round,
        all over.

        Corners hurt.
        """

    check = Check("roundness", "homogenizers", None, roundness)
    assert check.summary == "It is round, all over."
    assert check.explanation.endswith("\n\nCorners hurt.")


def test_an_example_is_plain_data():
    failure = CheckFailure(
        "no",
        rows=torch.ones(2, 1),
        dtype=torch.float16,
        places=(1, True),
        named={3: torch.tensor(0.5)},
        what=OptionError,
    )
    assert failure.example == {
        "rows": [[1.0], [1.0]], "dtype": "torch.float16", "places": [1, True], "named": {"3": 0.5},
        "what": "<class 'gradhomog.errors.OptionError'>",
    }  # fmt: skip


def test_an_object_is_told_without_the_address_that_is_another_in_every_run():
    assert plain(object()) == "<object object>"


def test_numbers_that_json_does_not_know_are_null_in_a_record_and_themselves_in_the_example():
    def breaks_down(_):
        raise CheckFailure("not finite", direction=torch.tensor([[1.0, math.nan]]), size={"most": math.inf})

    found = result(breaks_down, ALL)
    assert math.isnan(found.example["direction"][0][1])
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["example"] == {"direction": [[1.0, None]], "size": {"most": None}}

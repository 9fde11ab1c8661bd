"""The kit tests itself: every check finds the faults that it is there for, and only those."""

from __future__ import annotations

import importlib
import re

import pytest

from gradhomog.testing import check_homogenizer, checks
from tests.testing.homogenizers.faults import FAULTS, FaultyHomogenizer

for theme in (
    "agreement",
    "before_rows",
    "cost",
    "declared",
    "derivatives",
    "equivariance",
    "output",
    "purity",
    "state",
):
    importlib.import_module(f"tests.testing.homogenizers.faulty_{theme}")

ELSEWHERE = {
    "imports_cleanly": "test_imports.py, with distributions that can be imported",
    "devices": "test_devices.py, with a device that is not there",
    "cost": "measures, and finds nothing",
}


def test_every_check_has_a_faulty_homogenizer():
    assert {fault.check for fault in FAULTS} | set(ELSEWHERE) == {check.name for check in checks("homogenizers")}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found(fault: FaultyHomogenizer):
    report = check_homogenizer(fault.spec, only=fault.check)
    result = report[fault.check]
    assert result.outcome == "failed", result
    assert re.search(fault.says, result.message), result.message
    assert not report.passed
    if fault.shows is not None:
        assert fault.shows(**result.example), result.example


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_without_the_fault_nothing_is_found(fault: FaultyHomogenizer):
    result = check_homogenizer(fault.good, only=fault.check)[fault.check]
    assert result.outcome in ("passed", "not applicable", "not held"), result

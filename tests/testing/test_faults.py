"""Every check finds its faults, and correct plugins pass all checks."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from gradhomog.testing import check_homogenizer, check_learner, checks
from tests.testing.faults import FAULTS, GOOD, Fault

pytestmark = pytest.mark.slow

for path in sorted(Path(__file__).parent.glob("*/faults.py")):
    importlib.import_module(f"tests.testing.{path.parent.name}.{path.stem}")

CHECK = {"homogenizers": check_homogenizer, "learners": check_learner}
WITHOUT_FAULT = {
    "imports_cleanly": "tested in test_kits.py with installed distributions",
    "devices": "needs another device",
}
SEARCHED = {
    "finite_for_finite_rows", "identical_rows", "permutation_equivariant", "scale_equivariant", "rotation_equivariant",
    "non_conflicting",
}  # fmt: skip
"""Checks that search for the simplest failing rows: few, small, and whole numbers."""


def test_every_check_has_a_faulty_plugin():
    """A check of several kinds is one function; it needs a faulty plugin of one of them."""
    functions = {check.function: check.name for kind in GOOD for check in checks(kind)}
    tested = {check.function for fault in FAULTS for check in checks(fault.kind) if check.name == fault.check}
    assert {name for function, name in functions.items() if function not in tested} == set(WITHOUT_FAULT)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_check_finds_the_fault(fault: Fault):
    report = CHECK[fault.kind](fault.spec, only=fault.check)
    result = report[fault.check]
    assert result.outcome == "failed", result
    assert re.search(fault.message, result.message), result.message
    assert not report.passed
    if fault.check in SEARCHED:
        rows = torch.tensor(result.example["jacobian"], dtype=torch.float64)
        assert rows.numel() <= 30
        assert float(rows.abs().max()) <= 8
        assert torch.equal(rows, rows.round())


def test_correct_plugins_pass_all_checks_and_every_check_passes_for_one():
    passed = set()
    for kind, spec in [(name, spec) for name, specs in GOOD.items() for spec in specs.values()]:
        report = CHECK[kind](spec, fast=kind == "homogenizers")
        assert {result.outcome for result in report} <= {"passed", "held", "not held", "not applicable"}, report
        if kind != "homogenizers":
            assert [result.check for result in report if result.outcome == "not applicable"] == ["imports_cleanly"]
        passed |= {result.check for result in report if result.outcome in ("passed", "held")}
    # No correct homogenizer claims these traits; built-in ones pass their checks.
    names = {check.name for kind in GOOD for check in checks(kind)} - {"momentum", "per_tensor", "non_conflicting"}
    assert names - passed <= set(WITHOUT_FAULT)

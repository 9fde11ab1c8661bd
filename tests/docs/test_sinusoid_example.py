"""`docs/examples/sinusoid.py`: its tasks are those of Finn et al. 2017, section 5.1, and it trains."""

from __future__ import annotations

import math
import re
import runpy
from typing import Any

import pytest
import torch

from tests.docs import pages
from tests.docs.scripts import printed

SCRIPT = pages.DOCS / "examples" / "sinusoid.py"


def test_amplitudes_phases_and_inputs_have_the_ranges_of_the_paper() -> None:
    script: dict[str, Any] = runpy.run_path(str(SCRIPT), run_name="script")
    x, y = script["sinusoids"](400, 200, torch.Generator().manual_seed(0))
    assert -5 <= float(x.min()) < -4.99
    assert 4.99 < float(x.max()) <= 5
    # a sin(x − p) = a cos p · sin x − a sin p · cos x: both coefficients by least squares.
    basis = torch.cat([x.sin(), x.cos()], dim=2).double()
    first, second = torch.linalg.lstsq(basis, y.double()).solution.squeeze(2).unbind(1)
    amplitude, phase = torch.hypot(first, second), torch.atan2(-second, first)
    assert 0.099 < float(amplitude.min()) < 0.2
    assert 4.9 < float(amplitude.max()) < 5.001
    assert -1e-3 < float(phase.min()) < 0.05
    assert math.pi - 0.05 < float(phase.max()) < math.pi + 1e-3


@pytest.mark.parametrize("learner", ["maml", "fomaml"])
def test_it_prints_the_error_after_each_number_of_inner_steps(learner: str, capsys: Any) -> None:
    text = printed(SCRIPT, capsys, learner, "--steps", "150", "--test-tasks", "40")
    found = re.findall(r"^ +(\d+)   (\d+\.\d+) ± \d+\.\d+$", text, re.MULTILINE)
    assert [steps for steps, _ in found] == ["0", "1", "2", "3", "5", "10"]
    assert float(found[1][1]) < float(found[0][1])  # one inner step helps after 150 meta-steps

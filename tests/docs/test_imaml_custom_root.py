"""The example of iMAML by TorchOpt's `custom_root`: it agrees with the learner's own solver."""

from __future__ import annotations

import runpy

import pytest
import torch

from tests.docs import pages


@pytest.mark.filterwarnings("ignore:.*functorch:FutureWarning")
def test_torchopts_solver_agrees_on_a_well_conditioned_problem():
    example = runpy.run_path(str(pages.DOCS / "examples" / "imaml_custom_root.py"))
    ours, theirs = example["rows"](example["IMAML"]), example["rows"](example["CustomRootIMAML"])
    for name, row in ours.items():
        torch.testing.assert_close(theirs[name], row, rtol=1e-8, atol=1e-11)

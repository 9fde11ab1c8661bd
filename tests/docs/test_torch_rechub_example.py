"""`docs/examples/torch_rechub_multitask.py` runs and prints the scores of both tasks."""

from __future__ import annotations

import re

import pytest

from tests.docs import pages
from tests.docs.scripts import printed


def test_the_example_prints_the_scores_of_clicks_and_conversions(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_rechub", reason="needs the extra `torch-rechub`")
    script = pages.DOCS / "examples" / "torch_rechub_multitask.py"
    text = printed(script, capsys, "upgrad", "--epochs", "3", "--points", "8000")
    found = {name: float(score) for name, score in re.findall(r"^AUC/(\S+): (\S+)$", text, re.MULTILINE)}
    assert found.keys() == {"click", "conversion"}
    assert 0.55 < found["click"] < 1  # chance is 0.5
    assert 0.7 < found["conversion"] < 1

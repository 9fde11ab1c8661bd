"""`docs/examples/lightning_multitask.py` runs and prints errors and metrics of both tasks."""

from __future__ import annotations

import re

import pytest

from tests.docs import pages
from tests.docs.scripts import printed


@pytest.mark.filterwarnings("ignore")  # Lightning's advice
def test_the_example_prints_the_errors_the_weights_and_the_cosine(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning.pytorch", reason="needs the extra `lightning`")
    text = printed(pages.DOCS / "examples" / "lightning_multitask.py", capsys, "aligned_mtl", "--epochs", "1")
    found = dict(re.findall(r"^(\S+): (\S+)$", text, re.MULTILINE))
    names = {f"{kind}/{task}" for kind in ("loss", "nmse", "weight") for task in ("temperature", "humidity")}
    assert found.keys() == names | {"cosine/min"}
    assert 0 < float(found["nmse/humidity"]) < 2

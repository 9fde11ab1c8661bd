"""`docs/examples/complete_loop.py` resumes bit for bit, with a method that has a state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from tests.docs import pages
from tests.docs.scripts import printed

SCRIPT = pages.DOCS / "examples" / "complete_loop.py"


@pytest.mark.parametrize("method", ["gradnorm", "pcgrad(seed=1)"])
def test_a_run_that_is_interrupted_and_resumed_equals_an_uninterrupted_one(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *options: str) -> list[dict[str, Any]]:
        text = printed(SCRIPT, capsys, method, "--steps", "30", "--checkpoint", str(tmp_path / name), *options)
        return [json.loads(line) for line in text.splitlines()]

    whole = run("whole.pt")
    assert [row["step"] for row in run("resumed.pt", "--stop", "13")] == list(range(13))
    assert run("resumed.pt") == whole[10:]  # from the last checkpoint
    resumed, expected = (
        tree_flatten(torch.load(tmp_path / f"{name}.pt", weights_only=True)) for name in ("resumed", "whole")
    )
    assert resumed[1] == expected[1]  # names
    for found, value in zip(resumed[0], expected[0], strict=True):
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value


def test_the_loop_has_batches_and_parts_without_labels_and_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(SCRIPT, capsys, "upgrad", "--checkpoint", str(tmp_path / "run.pt"), "--steps", "60")
    rows = [json.loads(line) for line in text.splitlines()]
    absent = [row for row in rows if "loss/dose" not in row]
    assert 0 < len(absent) < len(rows)
    assert all("weight/age" in row and "cosine/age-weight" in row for row in rows)
    means = [sum(row["loss/weight"] for row in part) / len(part) for part in (rows[:10], rows[-10:])]
    assert means[1] < 0.7 * means[0]

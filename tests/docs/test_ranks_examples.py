"""The examples of training on several ranks print what one process prints, also after a change of their number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.scripts import printed

pytestmark = pytest.mark.slow


def printed_by_two_ranks(script: str, *arguments: str) -> str:
    """Return the output of the script, started by torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, str(DOCS / "examples" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split() if word.replace(".", "").replace("-", "").isdigit()]


def test_a_run_of_two_ranks_that_one_process_continues_equals_a_run_of_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = ["--checkpoint", str(tmp_path / "run.pt")]
    printed_by_two_ranks("ddp_multitask.py", "gradnorm", "--epochs", "2", *checkpoint)
    script = DOCS / "examples" / "ddp_multitask.py"
    continued = numbers(printed(script, capsys, "gradnorm", "--epochs", "3", *checkpoint))
    expected = numbers(printed(script, capsys, "gradnorm", "--epochs", "3"))
    assert len(expected) == 3
    assert continued == pytest.approx(expected, rel=0.01)


def test_a_model_that_is_split_over_two_ranks_is_trained_as_on_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    one = numbers(printed(DOCS / "examples" / "fsdp2_multitask.py", capsys, "upgrad", "--steps", "20"))
    two = numbers(printed_by_two_ranks("fsdp2_multitask.py", "upgrad", "--steps", "20"))
    assert len(one) == 2
    assert two == pytest.approx(one, abs=1e-3)

"""Start a module of this folder by torchrun on two ranks, and read what each rank found."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gradhomog import GradhomogError

ROOT = Path(__file__).parents[3]
RANKS = 2


def on_two_ranks(module: str, out: Path) -> list[dict[str, Any]]:
    """Return the results of `python -m tests.adapters.hosts.MODULE OUT` on each rank, which are `OUT/RANK.pt`."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--standalone"]
    process = subprocess.run(
        [*command, "-m", f"tests.adapters.hosts.{module}", str(out)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def save(out: str, found: dict[str, Any]) -> None:
    """Save the results of this rank."""
    torch.save(found, Path(out) / f"{os.environ['RANK']}.pt")


def error_of(training: Callable[[], Any]) -> str:
    """Return the class and the message of the error of a training."""
    try:
        training()
    except GradhomogError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

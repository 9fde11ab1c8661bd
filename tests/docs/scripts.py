"""The scripts in `docs/examples`, run as a user runs them, and the tasks that several of them are tested on."""

import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from gradhomog import Task


def printed(script: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a script and return its output; the number of threads is restored."""
    threads = torch.get_num_threads()
    try:
        with mock.patch.object(sys, "argv", [str(script), *arguments]):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    return capsys.readouterr().out


def image_batches() -> list[list[Task]]:
    """Three batches of three 5-way 1-shot tasks of random images, float64."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5)

    def task() -> Task:
        images = torch.randn(10, 1, 28, 28, generator=generator, dtype=torch.float64)
        return Task(images[:5], labels, images[5:], labels)

    return [[task() for _ in range(3)] for _ in range(3)]

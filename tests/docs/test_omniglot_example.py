"""`docs/examples/omniglot.py`: rotations are classes of their own, splits share none, and it trains and tests."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.docs import pages
from tests.docs.scripts import printed

SCRIPT = pages.DOCS / "examples" / "omniglot.py"


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Eight training and eight test characters, four images of each."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 4)
    images = random.integers(0, 256, (16, 28, 28, 1), dtype=np.uint8)[labels]
    path = tmp_path / "characters.npz"
    np.savez(path, images=images, labels=labels, class_split=np.array(["train", "test"] * 8))
    return str(path)


def test_training_characters_occur_in_four_rotations_and_test_characters_in_none_of_them(file: str) -> None:
    train, test = runpy.run_path(str(SCRIPT), run_name="script")["datasets"](file)
    images, classes = train.tensors
    assert len(classes.unique()) == 4 * 8
    assert len(test.tensors[1].unique()) == 8
    assert not set(classes.tolist()) & set(test.tensors[1].tolist())
    upright, turned = images[classes == 0], images[classes == 16]
    assert torch.equal(upright.rot90(1, (2, 3)), turned)


def test_it_prints_accuracies_after_some_steps_and_at_the_end(file: str, capsys: Any) -> None:
    text = printed(SCRIPT, capsys, file, "fomaml", "--steps", "2", "--every", "1", "--test-tasks", "6")
    lines = re.findall(r"^ +(\d+) +\d+\.\d +\d+\.\d +\d+\.\d ± \d+\.\d$", text, re.MULTILINE)
    assert lines == ["1", "2"]

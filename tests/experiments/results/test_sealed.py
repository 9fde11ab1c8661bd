"""A flipped bit is an error, wherever it is, and never another state or result."""

from __future__ import annotations

import json
import random

import pytest
import torch

from gradhomog import ConfigError
from gradhomog.experiments.results import sealed
from tests.experiments.results.test_run_dir import RESULT

STATE = {"network": {"weight": torch.arange(6.0).view(2, 3)}, "done": 7, "seconds": [0.5, 1.5]}


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_state_comes_back(tmp_path):
    sealed.write_state(tmp_path / "checkpoint.pt", STATE)
    found = sealed.read_state(tmp_path / "checkpoint.pt")
    assert torch.equal(found["network"]["weight"], STATE["network"]["weight"])
    assert (found["done"], found["seconds"]) == (7, [0.5, 1.5])


def test_every_flipped_bit_of_a_checkpoint_is_told(tmp_path):
    """Of 190 flips 22 gave another score without an error, when `torch.load` alone read it: it checks no CRC."""
    path = tmp_path / "checkpoint.pt"
    sealed.write_state(path, STATE)
    content = path.read_bytes()
    bits = random.Random(0).sample(range(8 * len(content)), 500)
    for bit in [*range(0, 800, 7), *bits]:
        path.write_bytes(flipped(content, bit))
        with pytest.raises(ConfigError, match="is damaged or no checkpoint"):
            sealed.read_state(path)


@pytest.mark.parametrize("length", [0, 1, 40, 100, 1000])
def test_a_truncated_checkpoint_is_told(tmp_path, length):
    path = tmp_path / "checkpoint.pt"
    sealed.write_state(path, STATE)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ConfigError, match="Remove it"):
        sealed.read_state(path)


def test_every_flipped_bit_of_a_result_is_told_or_changes_nothing(tmp_path):
    path = tmp_path / "result.json"
    sealed.write_result(path, {**RESULT, "version": 1, "files": {}})
    content, right = path.read_bytes(), sealed.read_result(path)
    for bit in range(8 * len(content)):
        path.write_bytes(flipped(content, bit))
        try:
            told = str(path) if sealed.read_result(path) == right else "another result"  # of white space
        except ConfigError as error:
            told = str(error)
        assert str(path) in told


def test_a_result_of_another_version_is_refused(tmp_path):
    path = tmp_path / "result.json"
    sealed.write_result(path, {**RESULT, "version": 99, "files": {}})
    with pytest.raises(ConfigError, match="format version 99"):
        sealed.read_result(path)
    path.write_text(json.dumps({"event": "result", "scores": [1]}))
    with pytest.raises(ConfigError, match="damaged"):
        sealed.read_result(path)

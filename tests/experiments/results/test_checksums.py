"""Every flipped bit of a checkpoint or result raises an error and never gives another state or result."""

from __future__ import annotations

import json
import random

import pytest
import torch

from gradhomog import ConfigError
from gradhomog.experiments.results import checksums
from tests.experiments.results.test_run_dir import RESULT

STATE = {"network": {"weight": torch.arange(6.0).view(2, 3)}, "done": 7, "seconds": [0.5, 1.5]}


def flip_bit(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_checkpoint_round_trips(tmp_path):
    checksums.write_checkpoint(tmp_path / "checkpoint.pt", STATE)
    state = checksums.read_checkpoint(tmp_path / "checkpoint.pt")
    assert torch.equal(state["network"]["weight"], STATE["network"]["weight"])
    assert (state["done"], state["seconds"]) == (7, [0.5, 1.5])


def test_every_flipped_bit_of_a_checkpoint_is_detected(tmp_path):
    """`torch.load` checks no CRC: without the SHA-256, 22 of 190 flips changed the score without an error."""
    path = tmp_path / "checkpoint.pt"
    checksums.write_checkpoint(path, STATE)
    content = path.read_bytes()
    bits = random.Random(0).sample(range(8 * len(content)), 500)
    for bit in [*range(0, 800, 7), *bits]:
        path.write_bytes(flip_bit(content, bit))
        with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
            checksums.read_checkpoint(path)


@pytest.mark.parametrize("length", [0, 1, 40, 100, 1000])
def test_a_truncated_checkpoint_is_detected(tmp_path, length):
    path = tmp_path / "checkpoint.pt"
    checksums.write_checkpoint(path, STATE)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ConfigError, match="Remove it"):
        checksums.read_checkpoint(path)


def test_every_flipped_bit_of_a_result_is_detected_or_changes_only_white_space(tmp_path):
    path = tmp_path / "result.json"
    checksums.write_result(path, {**RESULT, "version": 1, "files": {}})
    content, original = path.read_bytes(), checksums.read_result(path)
    for bit in range(8 * len(content)):
        path.write_bytes(flip_bit(content, bit))
        try:
            # A flip within white space may change nothing.
            message = str(path) if checksums.read_result(path) == original else "another result"
        except ConfigError as error:
            message = str(error)
        assert str(path) in message


def test_a_result_of_another_version_is_rejected(tmp_path):
    path = tmp_path / "result.json"
    checksums.write_result(path, {**RESULT, "version": 99, "files": {}})
    with pytest.raises(ConfigError, match="format version 99"):
        checksums.read_result(path)
    path.write_text(json.dumps({"event": "result", "scores": [1]}))
    with pytest.raises(ConfigError, match="damaged"):
        checksums.read_result(path)

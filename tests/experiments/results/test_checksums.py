"""A flipped bit of a checkpoint or result raises an error and never gives another state or result."""

import hashlib
import io
import json
import os
import random
import resource
import struct
import sys
import zipfile
from typing import TypedDict

import pytest
import torch

from gradhomog import ConfigError
from gradhomog.experiments.results import checksums, events
from gradhomog.experiments.results.comparison_dir import Plan, RunDir
from gradhomog.experiments.results.events import Count, Seconds
from gradhomog.experiments.run_file.schema import load
from tests.experiments.results.test_run_dir import RESULT

STATE = {"network": {"weight": torch.arange(6.0).view(2, 3)}, "done": 7, "seconds": [0.5, 1.5]}


class Kind(TypedDict):
    network: dict[str, torch.Tensor]
    done: Count
    seconds: list[Seconds]


def read_checkpoint(path):
    with checksums.open_checkpoint(path, Kind) as state:
        return state


def read_result(path):
    return RunDir(path.parent).result()


def flip_bit(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def result_path(folder):
    path = folder / RESULT["run"] / "result.json"
    path.parent.mkdir()
    return path


def test_every_flipped_bit_and_cut_of_a_checkpoint_is_detected(tmp_path):
    """`torch.load` checks no CRC: without the SHA-256, 22 of 190 flips changed the score without an error."""
    path = tmp_path / "checkpoint.pt"
    checksums.write_checkpoint(path, STATE)
    content = path.read_bytes()
    bits = random.Random(0).sample(range(8 * len(content)), 500)
    changed = [flip_bit(content, bit) for bit in [*range(0, 800, 7), *bits]]
    for found in [*changed, *(content[:length] for length in (0, 1, 40, 100, 1000))]:
        path.write_bytes(found)
        with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"done": -5}, "`done` must be an integer ≥ 0; got -5"),
        ({"seconds": [-1.0]}, "`seconds` must be a list .*; got"),
        ({"network": 3}, "`network` must be a table by name .*; got 3"),
    ],
)  # fmt: skip
def test_an_entry_of_a_wrong_type_or_range_raises_with_its_name(tmp_path, change, message):
    path = tmp_path / "checkpoint.pt"
    checksums.write_checkpoint(path, {**STATE, **change})
    with pytest.raises(ConfigError, match=rf"checkpoint\.pt: {message}.* Remove it to train this run from the start\."):
        read_checkpoint(path)
    checksums.write_checkpoint(path, {key: value for key, value in STATE.items() if key not in change})
    with pytest.raises(ConfigError, match=rf"checkpoint\.pt: `{next(iter(change))}` is missing\. Remove it"):
        read_checkpoint(path)


def zip_bytes(pickled, values=b"", method=zipfile.ZIP_STORED):
    """A file for `torch.load` with any pickle and one storage."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", "3\n")
        archive.writestr("a/byteorder", "little")
        archive.writestr("a/data/0", values)
    return file.getvalue()


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def deflated(count):
    """A storage of zeros that is deflated to a thousandth; `torch.save` never compresses."""
    with zipfile.ZipFile(io.BytesIO(saved({"network": torch.zeros(1)}))) as archive:
        pickled = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    return zip_bytes(pickled.replace(b"K\x01", b"J" + struct.pack("<i", count)), bytes(4 * count), zipfile.ZIP_DEFLATED)


def shared_lists(depth):
    """A list that holds the next one twice, and so on: few bytes, and 2 ** depth values."""
    inner = [1.0]
    for _ in range(depth):
        inner = [inner, inner]
    return inner


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (deflated(2**27), "needs much more memory than its 522,... bytes"),
        (saved({"network": torch.zeros(1).expand(2**30)}), "needs much more memory"),
        (saved({"network": [torch.zeros(2**18, dtype=torch.float64)] * 1000}), "needs much more memory"),
        (saved({"network": shared_lists(60)}), "needs much more memory"),
        (zip_bytes(b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x3f\x85R."), "needs much more memory"),
        (zip_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."), "contains other objects than tensors"),
        (saved(3), "AttributeError"),
        (b"no archive", "BadZipFile"),
    ],
    ids=["deflated", "stride 0", "one tensor often", "one list often", "constructor", "function", "number", "text"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_crafted_checkpoint_raises_before_it_takes_memory_or_calls_a_function(tmp_path, content, reason):
    path, before = tmp_path / "checkpoint.pt", resource.getrlimit(resource.RLIMIT_AS)
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(checksums.HEADER + digest + b"\n" + content)
    with pytest.raises(ConfigError, match=rf"checkpoint.pt is damaged or not a checkpoint: .*{reason}") as raised:
        read_checkpoint(path)
    assert "weights_only" not in str(raised.value)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("name", ["checkpoint.pt", "result.json", "events.jsonl", "plan.json", "run.toml"])
def test_a_fifo_in_place_of_a_file_raises_and_is_not_opened(tmp_path, name):
    os.mkfifo(tmp_path / name)
    read = {
        "checkpoint.pt": read_checkpoint, "result.json": read_result, "events.jsonl": events.read,
        "plan.json": lambda path: Plan.read(path.parent), "run.toml": load,
    }[name]  # fmt: skip
    with pytest.raises(ConfigError, match="must be a regular file; got a FIFO"):
        read(tmp_path / name)


def test_a_flipped_bit_of_a_result_is_detected_or_changes_only_white_space(tmp_path):
    path = result_path(tmp_path)
    checksums.write_json(path, {**RESULT, "files": {}})
    content, original = path.read_bytes(), read_result(path)
    for bit in random.Random(0).sample(range(8 * len(content)), 1500):
        path.write_bytes(flip_bit(content, bit))
        try:
            # A flip within white space may change nothing.
            message = str(path) if read_result(path) == original else "another result"
        except ConfigError as error:
            message = str(error)
        assert str(path) in message


def test_a_result_of_another_version_is_rejected(tmp_path):
    path = result_path(tmp_path)
    checksums.write_json(path, {**RESULT, "version": 99, "files": {}})
    with pytest.raises(ConfigError, match="format version 99"):
        read_result(path)
    path.write_text(json.dumps({"event": "result", "scores": [1]}))
    with pytest.raises(ConfigError, match="damaged"):
        read_result(path)

"""A full disk, a deleted and a shared folder: errors report them, completed work is kept; a short run of `kills`."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.results import atomic_files, checksums
from gradhomog.experiments.results.events import EventLog
from gradhomog.experiments.run_file.schema import load
from tests.experiments.run_helpers import results
from tests.reliability import kills
from tests.reliability.kills import OVERRIDES, compute


@pytest.mark.slow
def test_a_full_disk_is_reported_and_the_comparison_resumes_once_there_is_space(tmp_path):
    compute(tmp_path / "undisturbed")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        settings = [word for text in OVERRIDES for word in ("--set", text)]
        command = [sys.executable, "-m", "gradhomog", "compare", *settings, "--out", str(disk / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode in (1, 2), done.stderr
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        compute(disk / "out")
        assert results(disk / "out") == results(tmp_path / "undisturbed")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_is_deleted_while_a_checkpoint_is_written_is_not_created_again(tmp_path, monkeypatch):
    out, write = tmp_path / "out", checksums.write_checkpoint

    def delete_then_write(path: Path, state: Mapping[str, Any]) -> None:
        shutil.rmtree(out)
        write(path, state)

    monkeypatch.setattr(checksums, "write_checkpoint", delete_then_write)
    with pytest.raises(ConfigError, match="was removed while runs trained"):
        compare(load(None, OVERRIDES), out)
    assert not out.exists()


@contextlib.contextmanager
def limited_files():
    """No file of this process can have more than 100 bytes; writing fails as on a full disk, with another number."""
    resource = pytest.importorskip("resource", reason="limits of processes are those of Unix")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))  # before pytest writes, perhaps to a file


@pytest.mark.parametrize(
    "write",
    [
        lambda path: atomic_files.write_bytes(path, bytes(200)),
        lambda path: EventLog(path).append({"event": "failed", "step": 0, "error": "x" * 200}),
    ],
)
def test_errors_of_writing_name_the_file(tmp_path, write):
    with pytest.raises(OSError, match=r"\[Errno 27\] File too large: '.*events\.jsonl'"), limited_files():
        write(tmp_path / "events.jsonl")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")
def test_kills_do_not_change_the_table(capsys):
    assert kills.main(["--kills", "12", "--minutes", "3"]) == 0
    assert "all those of the undisturbed comparison" in capsys.readouterr().out


def start_at(moment: float, folder: Path, overrides: list[str]) -> int:
    """Start a comparison in a fork at a moment; its exit code is 0, 2 for an error of the input, or 3."""
    child = os.fork()
    if child == 0:
        try:
            config = load(None, overrides)
            while time.time() < moment:
                pass
            compare(config, folder)
            os._exit(0)
        except ConfigError as error:
            os._exit(2 if "hoose another --out" in str(error) and (folder / "plan.json").exists() else 3)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    return child


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked: imports would hide the race")
@pytest.mark.parametrize("steps", ["24", "25"])
def test_of_two_comparisons_that_start_in_one_folder_none_dies_and_none_mixes_results(tmp_path, without_figures, steps):
    compute(tmp_path / "undisturbed")
    others = [text.replace("train.steps=24", f"train.steps={steps}") for text in OVERRIDES]
    for trial in range(0, 8, 2):
        folder, moment = tmp_path / f"{trial}", time.time() + 0.1
        children = [start_at(moment, folder, OVERRIDES), start_at(moment + 0.005 * trial, folder, others)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert sorted(codes) in ([0, 0], [0, 2])
        assert steps == "24" or codes.count(0) == 1
        if codes[0] == 0:
            assert results(folder) == results(tmp_path / "undisturbed")

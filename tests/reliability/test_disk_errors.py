"""Full or read-only disks and deleted folders: errors report them, completed work is kept; a short run of `kills`."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.results import checksums
from gradhomog.experiments.run_file.schema import load
from tests.experiments.run_helpers import results
from tests.reliability import kills
from tests.reliability.kills import OVERRIDES, compute


def command(out: Path, *more: str) -> list[str]:
    settings = [word for text in OVERRIDES for word in ("--set", text)]
    return [sys.executable, "-m", "gradhomog", "compare", *settings, "--out", str(out), *more]


@pytest.fixture(scope="module")
def reference_scores(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    compute(folder)
    return results(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 96 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def error_output(done: subprocess.CompletedProcess[str]) -> str:
    """Return stderr of a failed command; it must have no traceback."""
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_full_disk_is_reported_and_the_comparison_resumes_once_there_is_space(small_disk, reference_scores):
    done = subprocess.run(command(small_disk / "out"), capture_output=True, text=True, timeout=300)
    assert "No space left on device" in error_output(done)
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    compute(small_disk / "out")
    assert results(small_disk / "out") == reference_scores


@pytest.mark.slow
def test_a_read_only_folder_is_reported(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = subprocess.run(command(small_disk / "out"), capture_output=True, text=True, timeout=300)
    assert "cannot be written" in error_output(done)
    assert len(done.stderr.splitlines()) == 1  # raised before the dry run


@pytest.mark.slow
def test_deleting_the_folder_during_training_ends_the_comparison(tmp_path):
    out = tmp_path / "out"
    # A process, which ends while its folder is deleted.
    endless = command(out, "--set", "train.steps=1000000", "--jobs=2")
    with subprocess.Popen(endless, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while not list(out.glob("runs/*/checkpoint.pt")) and process.poll() is None:
            time.sleep(0.01)
        while out.exists():  # a run may be writing into it
            shutil.rmtree(out, ignore_errors=True)
        try:
            output, error = process.communicate(timeout=120)
        finally:
            process.kill()
    assert f"{out} was removed while runs trained" in error_output(
        subprocess.CompletedProcess(endless, process.returncode, output, error)
    )


def test_a_folder_that_is_deleted_while_a_checkpoint_is_written_is_not_created_again(tmp_path, monkeypatch):
    out, write = tmp_path / "out", checksums.write_checkpoint

    def delete_then_write(path: Path, state: Mapping[str, Any]) -> None:
        shutil.rmtree(out)
        write(path, state)

    monkeypatch.setattr(checksums, "write_checkpoint", delete_then_write)
    with pytest.raises(ConfigError, match="was removed while runs trained"):
        compare(load(None, OVERRIDES), out)
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")
def test_kills_do_not_change_the_table(capsys):
    assert kills.main(["--kills", "12", "--minutes", "3"]) == 0
    assert "all those of the undisturbed comparison" in capsys.readouterr().out

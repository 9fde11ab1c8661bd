"""The folder of a run: the lock of one process, the result, recorded failures, and files replaced completely or not."""

import os
import subprocess
import sys

import pytest

from gradhomog.experiments.results import events
from gradhomog.experiments.results.atomic_files import atomic_write
from gradhomog.experiments.results.comparison_dir import RunDir

RESULT = {
    "event": "result", "run": "maml-none-s0", "learner": "maml", "homogenizers": "none", "seed": 0, "metric": "mse",
    "scores": [0.5], "losses": [0.5], "domains": ["a"], "validation": None, "best_step": 3, "steps": 3, "seconds": 1.0,
    "step_seconds": 0.1, "digest": "of the configuration", "fingerprints": {},
}  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="locks are those of POSIX")
def test_one_process_at_a_time_holds_the_lock_and_its_end_releases_it(tmp_path):
    code = (
        "import pathlib, sys\nfrom gradhomog.experiments.results.comparison_dir import RunDir\n"
        f"with RunDir(pathlib.Path({str(tmp_path)!r})).lock() as lock: print(lock, flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "True\n"
    with RunDir(tmp_path).lock() as acquired:
        assert not acquired
    other.kill()
    other.communicate()
    with RunDir(tmp_path).lock() as acquired:
        assert acquired


def test_a_result_has_digests_of_its_files_and_the_checkpoint_is_removed(tmp_path):
    folder = RunDir(tmp_path / RESULT["run"])
    folder.create("seeds = 1\n")
    (folder.path / "best.pt").write_bytes(b"network")
    folder.checkpoint.write_bytes(b"state")
    assert folder.result() is None
    folder.finish(RESULT)
    result = folder.result()
    assert {name: len(digest) for name, digest in result["files"].items()} == {"best.pt": 64, "config.toml": 64}
    assert not folder.checkpoint.exists()


def test_temporary_files_of_a_killed_process_are_removed_and_its_run_file_is_kept(tmp_path):
    folder = RunDir(tmp_path)
    folder.create("seeds = 1\n")
    (tmp_path / "checkpoint.pt.elsewhere-17.tmp").write_bytes(b"half")
    folder.create("seeds = 2\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml"]
    assert folder.config.read_text() == "seeds = 1\n"


def test_a_failure_replaces_the_unfinished_line_of_a_killed_process(tmp_path):
    folder = RunDir(tmp_path)
    validation = b'{"event": "validation", "step": 5, "score": 0.5, "half_width": null}\n'
    folder.events.write_bytes(validation + b'{"event": "ste')
    assert folder.failure() is None
    folder.record_failure("the process ended: SIGKILL(-9)")
    folder.record_failure("a second one, which is not recorded")
    assert folder.events.read_bytes().startswith(validation)
    assert [event["event"] for event in events.read(folder.events)] == ["validation", "failed"]
    assert folder.failure() == "the process ended: SIGKILL(-9)"


def test_an_error_while_writing_keeps_the_previous_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")

    def write():
        with atomic_write(path) as temporary:
            temporary.write_text("hal")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write()
    assert path.read_text() == "before"


def test_a_removed_folder_is_not_created_again(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "removed" / "file.txt") as temporary:
        temporary.write_text("content")
    assert not list(tmp_path.iterdir())

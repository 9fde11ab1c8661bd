"""`torchrun -m gradhomog train` on several ranks gives the result of one process, also after a rank has died."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUN_FILE = """
homogenizers = ["upgrad"]
seeds = 1
[train]
steps = 40
checkpoint_every = 5
validate_every = 40
[test]
episodes = 8
"""


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torchrun") / "run.toml"
    path.write_text(RUN_FILE)
    return path


@pytest.fixture(scope="module")
def scores_of_one_process(run_file: Path) -> Any:
    in_one_process(run_file, run_file.parent / "one")
    return pytest.approx(scores(run_file.parent / "one"), rel=1e-3)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(ranks: int, run_file: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone", *options]
    return subprocess.Popen(
        [*command, "-m", "gradhomog", "train", str(run_file), "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(),
    )  # fmt: skip


def in_one_process(run_file: Path, out: Path, *options: str) -> None:
    command = [sys.executable, "-m", "gradhomog", "train", str(run_file), "--out", str(out), *options]
    subprocess.run(command, check=True, capture_output=True, env=environment())


def scores(out: Path) -> list[float]:
    (path,) = (out / "runs").glob("*/result.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return list(record["scores"])


def process_of_rank(rank: int, parent: int) -> int | None:
    """Return the id of the child of `torchrun` that is this rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            child = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if child and f"\0RANK={rank}\0" in f"\0{(folder / 'environ').read_text()}":
                return int(folder.name)
        except OSError:  # ended meanwhile
            continue
    return None


def kill_a_rank(process: subprocess.Popen[str], out: Path) -> None:
    """Kill rank 1 after the first checkpoint."""
    while not list(out.glob("runs/*/checkpoint.pt")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    victim = process_of_rank(1, process.pid)
    assert victim is not None
    os.kill(victim, signal.SIGKILL)


def steps_at_start(out: Path) -> list[int]:
    (events,) = out.glob("runs/*/events.jsonl")
    return [json.loads(line)["step"] for line in events.read_text().splitlines() if '"start"' in line]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc")
@pytest.mark.parametrize(("ranks", "restarts"), [(2, 0), (3, 1)], ids=["resumed in one process", "restarted"])
def test_a_run_continues_after_a_rank_has_died_and_has_the_scores_of_one_process(
    tmp_path, run_file, scores_of_one_process, ranks, restarts
):
    out = tmp_path / "ranks"
    process = torchrun(ranks, run_file, out, f"--max-restarts={restarts}")
    kill_a_rank(process, out)
    output, _ = process.communicate(timeout=200)
    assert (process.returncode == 0) == bool(restarts), output
    if not restarts:
        assert "Signal 9 (SIGKILL)" in output
        in_one_process(run_file, out, "--resume")
    starts = steps_at_start(out)
    assert len(starts) == 2
    assert starts[1] > 0
    assert scores(out) == scores_of_one_process


def test_more_ranks_than_tasks_raise_and_all_ranks_end(tmp_path):
    run_file = tmp_path / "run.toml"
    run_file.write_text(RUN_FILE + "[episodes]\ntasks = 1\n")
    process = torchrun(2, run_file, tmp_path / "out")
    output, _ = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "`episodes.tasks` must be at least the number of ranks, 2; got 1" in output
    assert "forcefully exiting" not in output  # torchrun kills a process that has not ended after 30 s

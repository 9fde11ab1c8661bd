"""Kill a comparison repeatedly at random times, resume it, and check that its table equals that of an undisturbed one.

    python -m tests.reliability.kills --kills 500 --minutes 30

The problem is small and writes an event and a checkpoint at every step: kills therefore hit training, checkpoints,
events and results. Most kills are of a comparison in one process, forked from this one, which has imported all modules.
Every tenth kill is of the command with two worker processes: of the parent, of a worker, or of both. Exits with code 1
if a table differs, or if a worker outlives its parent by more than `--grace` seconds.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.execution.verification import verify
from gradhomog.experiments.results.comparison_dir import MANIFEST, PLAN
from gradhomog.experiments.results.records import records
from gradhomog.experiments.run_file.schema import load

OVERRIDES = [
    "problem.name=landscape", "train.steps=24", "train.validate_every=4", "train.checkpoint_every=1",
    "train.log_every=1", 'homogenizers=["none", "pcgrad", "mgda", "static | static(weights=\\"random\\")"]', "seeds=1",
]  # fmt: skip


def results(folder: Path) -> dict[tuple[str, str, int, str], list[float]]:
    """Return the scores of every run, by method, pipeline, seed and role."""
    return {
        (r["label"], r["homogenizers"], r["seed"], r["role"]): r["scores"]
        for r in records(folder)
        if r["event"] == "result"
    }


def compute(folder: Path) -> None:
    """Compute the comparison in this process, without the report, which takes longer than the runs."""
    with mock.patch("gradhomog.experiments.execution.comparison.write_report"):
        compare(load(None, OVERRIDES), folder, resume=(folder / PLAN).exists())


def kill_fork(folder: Path, delay: float) -> bool:
    """Compute the comparison in a fork that is killed after a delay; return True if it finished before."""
    child = os.fork()
    if child == 0:
        try:
            compute(folder)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(3)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 3:
        raise SystemExit("a comparison that was killed before cannot be resumed")
    return status == 0


def children(parent: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(text) for text in listed.stdout.split()]


def is_alive(process: int) -> bool:
    """True if a process runs: it has not ended and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_command(folder: Path, delay: float, target: str, grace: float) -> bool:
    """Start the command with two workers and kill it after a delay; return True if it finished before.

    Raises:
        SystemExit: a worker outlives its parent.
    """
    arguments = [argument for override in OVERRIDES for argument in ("--set", override)]
    resume = ["--resume"] if (folder / PLAN).exists() else []
    process = subprocess.Popen(
        [sys.executable, "-m", "gradhomog", "compare", "--jobs=2", "--out", str(folder), *resume, *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    time.sleep(delay)
    workers = children(process.pid)
    if target != "parent" and workers:
        os.kill(random.choice(workers), signal.SIGKILL)
    if target == "worker":
        return process.wait() == 0  # the command replaces the worker and continues
    done = process.poll() == 0
    process.kill()
    process.wait()
    time.sleep(grace)
    if surviving := [worker for worker in workers if is_alive(worker)]:
        raise SystemExit(f"processes {surviving} outlive their parent, which was killed {grace} s ago")
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=30.0, help="time limit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grace", type=float, default=1.0, help="seconds that a worker may outlive its parent")
    parser.add_argument("--commands", type=int, default=10, help="kill the command at every n-th kill; 0: never")
    options = parser.parse_args(arguments)
    random.seed(options.seed)
    end, kinds, tables = time.monotonic() + 60 * options.minutes, Counter[str](), 0
    with tempfile.TemporaryDirectory() as root:
        start = time.monotonic()
        compute(Path(root) / "undisturbed")
        duration, expected, number = time.monotonic() - start, results(Path(root) / "undisturbed"), 0
        folder = Path(root) / "0"
        while kinds.total() < options.kills and time.monotonic() < end:
            if options.commands and kinds.total() % options.commands == options.commands - 1:
                kind = random.choice(["parent", "worker", "both"])
                done = kill_command(folder, random.uniform(2.0, 8.0), kind, options.grace)
            else:
                # Various delays: a folder is killed about five times before its comparison is complete.
                kind, done = "one process", kill_fork(folder, duration * random.uniform(0.0, 0.5))
            kinds[kind] += 1
            if done or kinds.total() == options.kills:
                compute(folder)
                tables += 1
                # `compute` writes no report, and with it no manifest.
                damaged = [error for error in verify(folder) if error and f"{MANIFEST} is missing" not in error]
                if results(folder) != expected or damaged:
                    print(f"the table of {folder.name} differs, or files are damaged: {damaged}")
                    return 1
                number += 1
                folder = Path(root) / str(number)
    killed = ", ".join(f"{count} of {kind}" for kind, count in kinds.most_common())
    print(f"{kinds.total()} kills ({killed}); {tables} tables, all those of the undisturbed comparison")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Kill a comparison repeatedly at random times, resume it, and check that its table equals that of an undisturbed one.

    python -m tests.reliability.kills --kills 500 --minutes 30

The problem is small and writes an event and a checkpoint at every step: kills therefore hit training, checkpoints,
events and results. Each comparison runs in a process that is forked from this one, which has imported all modules.
Exits with code 1 if a table differs.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.execution.verification import verify
from gradhomog.experiments.results.comparison_dir import MANIFEST, PLAN
from gradhomog.experiments.run_file.schema import load
from tests.experiments.run_helpers import results

OVERRIDES = [
    "problem.name=landscape", "train.steps=24", "train.validate_every=4", "train.checkpoint_every=1",
    "train.log_every=1", 'homogenizers=["none", "pcgrad", "mgda", "static | static(weights=\\"random\\")"]', "seeds=1",
]  # fmt: skip


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=30.0, help="time limit")
    options = parser.parse_args(arguments)
    random.seed(0)
    end, kills, tables = time.monotonic() + 60 * options.minutes, 0, 0
    with tempfile.TemporaryDirectory() as root:
        start = time.monotonic()
        compute(Path(root) / "undisturbed")
        duration, expected = time.monotonic() - start, results(Path(root) / "undisturbed")
        folder = Path(root) / "0"
        while kills < options.kills and time.monotonic() < end:
            # Various delays: a folder is killed about five times before its comparison is complete.
            done = kill_fork(folder, duration * random.uniform(0.0, 0.5))
            kills += 1
            if done or kills == options.kills:
                compute(folder)
                tables += 1
                # `compute` writes no report, and with it no manifest.
                damaged = [error for error in verify(folder) if error and f"{MANIFEST} is missing" not in error]
                if results(folder) != expected or damaged:
                    print(f"the table of {folder.name} differs, or files are damaged: {damaged}")
                    return 1
                folder = Path(root) / str(tables)
    print(f"{kills} kills; {tables} tables, all those of the undisturbed comparison")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

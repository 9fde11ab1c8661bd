"""Processes that are ranks of a process group on this machine; started once, because importing torch takes seconds."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MOST = 3
SECONDS = 120.0


class Processes:
    """Runs a function on several ranks at once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._calls = folder, 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, function: Callable[..., Any], ranks: int, *arguments: Any, **keywords: Any) -> list[Any]:
        """Return the results of all ranks; raise with the traceback of the first rank that failed."""
        if not self._processes:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "tests.ranks.worker", str(rank)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment,
                )
                for rank in range(MOST)
            ]  # fmt: skip
        self._calls += 1
        store = str(self._folder / f"store{self._calls}")
        request = (function.__module__, function.__name__, ranks, store, arguments, keywords)
        timer = threading.Timer(SECONDS, self.close)  # the processes end, and reading their answers raises
        timer.start()
        try:
            for process in self._processes[:ranks]:
                pickle.dump(request, process.stdin)  # type: ignore[arg-type]
                process.stdin.flush()  # type: ignore[union-attr]
            answers = [pickle.load(process.stdout) for process in self._processes[:ranks]]  # type: ignore[arg-type]
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            codes = [process.poll() for process in self._processes[:ranks]]
            self.close()  # otherwise the next call would read answers to this one
            raise AssertionError(f"a rank ended without an answer; exit codes: {codes}") from error
        finally:
            timer.cancel()
        errors = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(answers) if kind == "error"]
        assert not errors, "\n".join(errors)
        return [value for _, value in answers]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._processes = []


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    running = Processes(tmp_path_factory.mktemp("ranks"))
    yield running
    running.close()

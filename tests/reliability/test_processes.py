"""The command line as a process: signals at any time, and output encodings other than Unicode."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROC = Path("/proc/self/status").exists()
needs_proc = pytest.mark.skipif(not PROC, reason="reads the state of a process from /proc")


def handles_sigterm(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [caught] = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")]
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def imports_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow_after_first
@needs_proc
@pytest.mark.parametrize(
    ("command", "reached"), [("compare", handles_sigterm), ("compare", imports_torch), ("report", handles_sigterm)]
)
def test_a_termination_while_the_program_starts_is_an_interrupt(
    command: str, reached: Callable[[int], bool], tmp_path: Path
) -> None:
    arguments = [sys.executable, "-m", "gradhomog", command, *(["none"] if command == "report" else [])]
    with subprocess.Popen(
        arguments, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not reached(process.pid):
            time.sleep(0.001)
        process.terminate()
        _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (130, "gradhomog: interrupted.\n")


def test_an_interrupt_during_the_creation_of_a_class_has_the_same_exit_code(tmp_path: Path) -> None:
    """Dataclasses and named tuples call `exec` during imports, where CPython would end the process by SIGINT."""
    code = """
import sys
import gradhomog.cli.list_ as command
def run(given):
    exec("raise KeyboardInterrupt")
command.run = run
from gradhomog.cli import main
sys.exit(main(["list"]))
"""
    (tmp_path / "interrupted.py").write_text(code)
    command = [sys.executable, "-m", "interrupted"]  # as `python -m gradhomog`
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "gradhomog: interrupted.\n")


def test_a_signal_handler_of_the_calling_program_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradhomog.cli import main

    def handler(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, handler)
    try:
        main(["list"])
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    main(["list"])
    assert signal.getsignal(signal.SIGTERM) == before


def output(*arguments: str, encoding: str) -> subprocess.CompletedProcess[bytes]:
    # A process, because the encoding of its output is set at its start.
    command = [sys.executable, "-m", "gradhomog", *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run(command, capture_output=True, env=environment, timeout=300, check=False)


def test_json_output_is_complete_if_the_output_is_not_unicode(capsys: pytest.CaptureFixture[str]) -> None:
    from gradhomog.cli import main

    done = output("show", "gradnorm", "--json", encoding="ascii")
    assert main(["show", "gradnorm", "--json"]) == 0
    assert json.loads(done.stdout) == json.loads(capsys.readouterr().out)
    assert "alpha=1.5 (a number ≥ 0)" in json.loads(done.stdout)["options"]


def test_an_error_that_is_not_unicode_is_one_message() -> None:
    done = output("show", "größe≥", encoding="ascii")
    assert done.returncode == 2
    assert b"unknown homogenizer 'gr??e?'" in done.stderr
    assert b"Traceback" not in done.stderr

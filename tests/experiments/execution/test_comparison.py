"""Comparisons: interruptions, kills and resuming do not change the table, and failures are reported separately."""

import os
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.execution.worker import Job, Outcome
from gradhomog.experiments.results.records import records
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from tests.experiments.conftest import SMALL
from tests.experiments.run_helpers import gradhomog_without_figures, interrupted_after, results
from tests.hostile.plugins import plugin
from tests.reliability.kills import children, is_alive

slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("without_figures")  # except for the fixture `uninterrupted`


def table(outcome):
    return [(row.label, row.score.mean, row.score.half_width) for row in outcome.summary.rows]


def arguments(folder, overrides, *more):
    return ["compare", "--out", str(folder), *more, *(word for override in overrides for word in ("--set", override))]


def command(folder, overrides, *more):
    return [sys.executable, "-m", "gradhomog", *arguments(folder, overrides, *more)]


def has_step_on_disk(folder):
    return any(b'"step"' in path.read_bytes() for path in folder.glob("runs/*/events.jsonl"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The outcome of an uninterrupted comparison in one process."""
    return compare(load(None, SMALL), tmp_path_factory.mktemp("whole"))


@slow
def test_resuming_a_finished_comparison_computes_nothing_and_gives_the_same_table(uninterrupted):
    files = {path: path.stat().st_mtime_ns for path in (uninterrupted.folder / "runs").rglob("*.json*")}
    resumed = compare(load(None, SMALL), uninterrupted.folder, resume=True)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert table(resumed) == table(uninterrupted)


@slow
@pytest.mark.parametrize("count", [1, 37, 70])
def test_a_comparison_interrupted_after_any_step_resumes_to_the_same_table(uninterrupted, tmp_path, count):
    config = load(None, SMALL)
    with interrupted_after(count), pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "out")
    with interrupted_after(10**9) as steps:
        outcome = compare(config, tmp_path / "out", resume=True)
    assert results(outcome.folder) == results(uninterrupted.folder)
    assert table(outcome) == table(uninterrupted)
    # No step is repeated: 2 methods × 2 seeds, 2 candidates and 1 further seed of the chosen candidate, 12 steps each.
    assert count + len(steps) == 7 * 12
    assert not list((tmp_path / "out").glob(".stop*"))


@slow
def test_a_comparison_whose_processes_are_killed_resumes_to_the_same_table(uninterrupted, tmp_path):
    """SIGKILL after the first step is on disk; additionally, each event log ends with an unfinished line.

    After one step, the resumed comparison computes nearly everything: two worker processes give the results of one.
    """
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(out, SMALL, "--jobs=2"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    while process.poll() is None and not has_step_on_disk(out):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for log in out.glob("runs/*/events.jsonl"):
        with log.open("ab") as file:
            file.write(b'{"event": "ste')
    outcome = compare(load(None, SMALL), out, resume=True, jobs=2)
    assert results(outcome.folder) == results(uninterrupted.folder)
    assert table(outcome) == table(uninterrupted)


@slow
def test_a_run_of_another_process_is_awaited_and_computed_once(uninterrupted, tmp_path):
    """Two commands use one folder at the same time, as on two machines that share it."""
    out = tmp_path / "out"
    first = subprocess.Popen(
        gradhomog_without_figures(*arguments(out, SMALL, "--jobs=1")), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while first.poll() is None and not has_step_on_disk(out):
        time.sleep(0.01)
    outcome = compare(load(None, SMALL), out, resume=True)
    assert first.wait(timeout=120) == 0
    assert table(outcome) == table(uninterrupted)
    for log in out.glob("runs/*/events.jsonl"):
        assert log.read_bytes().count(b'"event": "start"') == 1


FAULTY = plugin("""
    def mix(self, step):
        if step.number == 4:
            raise RuntimeError("out of ideas")
        return torch.ones(step.tasks)
""")


RECORDING = """
import gradhomog
CALLS = []
def recording(config, folder):
    assert (config["learner"], folder.name[:4]) == ("maml", "maml")
    return lambda event, record: CALLS.append((event, record))
@gradhomog.hookimpl
def gradhomog_observer():
    return gradhomog.ObserverSpec(factory=recording, summary="stores its calls")
"""


def test_an_observer_receives_every_event_of_its_run_and_the_result(gradhomog_install, tmp_path):
    gradhomog_install("recording-dist", RECORDING, plugin="recording", kind="observers")
    overrides = [*SMALL, 'homogenizers=["none"]', "seeds=1", 'observers=["recording"]']
    outcome = compare(load(None, overrides), tmp_path / "out")
    received = [(event, record["run"]) for event, record in sys.modules["recording_dist"].CALLS]
    [folder] = (outcome.folder / "runs").iterdir()
    expected = [record["event"] for record in records(outcome.folder)[1:]]
    assert received == [(event, folder.name) for event in ["start", *expected]]
    assert (expected.count("result"), expected.count("step")) == (1, 7)


TWO = 'homogenizers=["none", "pcgrad"]'


@slow
def test_a_script_without_a_main_guard_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from gradhomog.experiments.execution.comparison import compare\n"
        "from gradhomog.experiments.run_file.schema import load\n"
        "from gradhomog.experiments.report import page\n"
        "page._save_figures = lambda *arguments: {}  # takes longer than the runs\n"
        f"config = load(None, {[*SMALL, 'seeds=1', TWO]!r})\n"
        f"outcome = compare(config, Path({str(tmp_path / 'out')!r}), jobs=2)\n"
        "print(len(outcome.failures), len(outcome.summary.rows))\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.stdout == "0 2\n", done.stdout + done.stderr


KILLING = FAULTY.replace('raise RuntimeError("out of ideas")', "__import__('os').kill(__import__('os').getpid(), 9)")


@slow
def test_a_run_whose_process_is_killed_repeatedly_fails_and_the_others_finish(gradhomog_install, tmp_path):
    gradhomog_install("faulty-dist", KILLING, plugin="faulty")
    config = load(None, [*SMALL, 'homogenizers=["none", "faulty", "pcgrad"]', "seeds=1"])
    outcome = compare(config, tmp_path / "out", jobs=2)
    assert set(outcome.failures) == {Run("maml", "faulty", 0).id}
    assert all("ended: SIGKILL(-9), possibly out of memory" in error for error in outcome.failures.values())
    assert [(row.label, row.seeds) for row in outcome.summary.rows] == [("plain", (0,)), ("pcgrad", (0,))]


def run_and_stop(folder, stop, *options):
    """Signal a comparison with two worker processes once a step is on disk; return exit code and stderr."""
    process = subprocess.Popen(
        command(folder, [*SMALL, "train.steps=400"], "--jobs=2", *options), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    while process.poll() is None and not has_step_on_disk(folder):
        time.sleep(0.01)
    stop(process)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@slow
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_stops_after_checkpoints_without_traceback(tmp_path, name):
    """Terminals, `timeout` and schedulers send such signals."""
    out = tmp_path / "out"
    code, errors = run_and_stop(out, lambda process: os.killpg(process.pid, name))
    assert code == 130, errors
    assert "Traceback" not in errors
    assert "--resume" in errors
    assert list(out.glob("runs/*/checkpoint.pt"))
    assert not any(record["event"] == "failed" for record in records(out))


@slow
def test_no_process_outlives_its_parent_by_more_than_a_second(tmp_path):
    out = tmp_path / "out"
    workers = []

    def kill(process):
        workers.extend(children(process.pid))
        process.kill()

    run_and_stop(out, kill)
    assert workers
    end = time.monotonic() + 20.0  # takes a second on an idle machine
    while any(map(is_alive, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(is_alive, workers))


FAULTY_WITH_SEED_1 = FAULTY.replace("step.number == 4", "step.number == 4 and __import__('torch').initial_seed() == 1")


@slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_tuned_method_that_fails_with_a_later_seed_runs_once(gradhomog_install, tmp_path, jobs):
    """The failure must not count as a failure of the candidate: the tuning would be decided again, with new runs."""
    gradhomog_install("faulty-dist", FAULTY_WITH_SEED_1, plugin="faulty")
    failures = []
    overrides = [*SMALL, 'homogenizers=["none", "faulty | faulty + static"]', "seeds=3"]
    outcome = compare(
        load(None, overrides), tmp_path / "out", jobs=jobs,
        progress=lambda record: failures.extend([record] if record["event"] == "failed" else []),
    )  # fmt: skip
    assert len(failures) == 1
    assert "out of ideas" in failures[0]["error"]
    assert outcome.summary.rows[1].seeds == (0, 2)


def test_a_tuned_method_uses_another_candidate_if_a_process_was_killed(tmp_path):
    """A killed process writes no event `failed`; the method must still be in the table."""
    config = load(None, [*SMALL, 'homogenizers=["none", "static | pcgrad"]', "seeds=1"])
    original = Job._compute

    def compute(self):
        if self.run.homogenizers == "pcgrad":
            return Outcome(self.run, "failed", "the process of the run ended: SIGKILL(-9)")
        return original(self)

    with mock.patch.object(Job, "_compute", compute):
        outcome = compare(config, tmp_path / "out")
    assert [row.label for row in outcome.summary.rows] == ["plain", "static | pcgrad (tuned)"]
    assert [(c.homogenizers, c.chosen) for c in outcome.summary.candidates] == [("static", True)]


def test_waiting_runs_do_not_start_after_a_stop_request(tmp_path):
    config = load(None, [*SMALL, "seeds=1"])
    with interrupted_after(3), pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "out")
    assert len(list((tmp_path / "out" / "runs").glob("*/config.toml"))) == 1


def test_a_result_of_another_configuration_is_rejected_without_a_plan(tmp_path):
    config = load(None, [*SMALL, 'homogenizers=["none"]', "seeds=1"])
    compare(config, tmp_path / "out")
    for name in ("plan.json", "run.toml"):
        (tmp_path / "out" / name).unlink()
    other = load(None, [*SMALL, 'homogenizers=["none"]', "seeds=1", "train.steps=6"])
    with pytest.raises(ConfigError, match="contains a result of another configuration"):
        compare(other, tmp_path / "out")


def test_temporary_files_of_users_are_not_removed(tmp_path):
    (tmp_path / "notes.tmp").write_text("mine")
    (tmp_path / "run.toml.host-12.tmp").write_text("of a process that was killed")
    compare(load(None, [*SMALL, 'homogenizers=["none"]', "seeds=1"]), tmp_path)
    assert [path.name for path in tmp_path.glob("*.tmp")] == ["notes.tmp"]


def test_an_unknown_executor_is_rejected_before_the_dry_run(tmp_path):
    records = []
    with pytest.raises(ConfigError, match="unknown executor 'loky'"):
        compare(load(None, SMALL), tmp_path / "out", executor="loky", progress=records.append)
    assert (records, (tmp_path / "out").exists()) == ([], False)


@slow
def test_a_tuned_method_uses_another_candidate_if_one_fails(gradhomog_install, tmp_path):
    gradhomog_install("faulty-dist", FAULTY, plugin="faulty")
    config = load(None, [*SMALL, 'homogenizers=["none", "faulty | pcgrad"]'])
    outcome = compare(config, tmp_path / "out")
    resumed = compare(config, tmp_path / "out", resume=True)
    for comparison in (outcome, resumed):
        row = comparison.summary.rows[1]
        assert (row.label, row.chosen, len(row.seeds)) == ("faulty | pcgrad (tuned)", "pcgrad", 2)
        assert len(comparison.failures) == 1

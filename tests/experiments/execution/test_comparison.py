"""A comparison: one table however it was run, stopped, killed or resumed; failures are reported and kept apart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gradhomog.experiments.config.schema import load
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.results import run_dir as folders
from gradhomog.experiments.results.events import ResultLog
from tests.experiments.conftest import SMALL

slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("undrawn")  # but for `whole`


def results(path):
    return {
        (r["label"], r["homogenizers"], r["seed"], r["role"]): (r["scores"], r["validation"], r["best_step"])
        for r in ResultLog.read(path / folders.LOG)
        if r["event"] == "result"
    }


def table(outcome):
    return [(row.label, row.score.mean, row.score.half_width) for row in outcome.summary.rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted comparison in one process."""
    return compare(load(None, SMALL), tmp_path_factory.mktemp("whole"))


@slow
def test_everything_that_a_user_expects_is_written(whole):
    names = {path.name for path in whole.folder.iterdir()}
    assert {"run.toml", "results.jsonl", "summary.csv", "report.html", "figures", "runs"} <= names
    figures = {path.name for path in (whole.folder / "figures").iterdir()}
    assert {f"{stem}.{kind}" for stem in ("scores", "conflict", "weights") for kind in ("svg", "png")} <= figures
    assert all((run / "best.pt").exists() for run in (whole.folder / "runs").iterdir())
    assert not whole.failures


@slow
def test_every_method_has_every_seed_and_the_tuned_one_is_the_candidate_that_validated_best(whole):
    found = results(whole.folder)
    assert [row.label for row in whole.summary.rows] == ["plain", "pcgrad", "static (tuned)"]
    candidates = {key[1]: value for key, value in found.items() if key[3] == "candidate"}
    assert set(candidates) == {"static", 'static(weights="random")'}
    best = min(candidates, key=lambda text: candidates[text][1])  # mean squared error: smaller is better
    tuned = {key: value for key, value in found.items() if key[0] == "static (tuned)" and key[3] == "compare"}
    assert {key[1] for key in tuned} == {best}
    assert {key[2] for key in tuned} == {0, 1}
    assert tuned["static (tuned)", best, 0, "compare"] == candidates[best]


@slow
def test_static_weights_of_one_are_the_plain_learner(whole):
    found = results(whole.folder)
    plain, static = found["plain", "none", 0, "compare"], found["static (tuned)", "static", 0, "candidate"]
    assert static[0] == pytest.approx(plain[0], rel=1e-3)


@slow
def test_the_log_holds_configuration_versions_and_steps(whole):
    records = ResultLog.read(whole.folder / folders.LOG)
    start = next(r for r in records if r["event"] == "start")
    assert start["config"] == load(None, SMALL).to_dict()
    assert {"python", "torch", "torchopt", "gradhomog"} <= set(start["versions"])
    steps = [r for r in records if r["event"] == "step"]
    assert {r["step"] for r in steps} == {1, 2, 4, 6, 8, 10, 12}
    assert all(len(r["losses"]) == len(r["norms"]) == len(r["weights"]) == len(r["cosines"]) == 3 for r in steps)


@slow
def test_resuming_a_finished_comparison_does_nothing_and_gives_the_same_table(whole):
    before = results(whole.folder)
    steps = sum(r["event"] == "step" for r in ResultLog.read(whole.folder / folders.LOG))
    seen = []
    again = compare(load(None, SMALL), whole.folder, resume=True, progress=seen.append)
    assert not any(record["event"] == "progress" for record in seen)
    assert results(whole.folder) == before
    assert sum(r["event"] == "step" for r in ResultLog.read(whole.folder / folders.LOG)) == steps
    assert table(again) == table(whole)


@slow
@pytest.mark.parametrize("count", [1, 37, 70])
def test_interrupted_after_any_step_it_resumes_to_the_same_table(whole, tmp_path, count):
    config = load(None, SMALL)

    def interrupt(record):
        interrupt.steps += record["event"] == "progress"
        if interrupt.steps == count and record["event"] == "progress":
            signal.raise_signal(signal.SIGINT)

    interrupt.steps = 0
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "out", progress=interrupt)
    resumed = []
    outcome = compare(config, tmp_path / "out", resume=True, progress=resumed.append)
    assert results(outcome.folder) == results(whole.folder)
    assert table(outcome) == table(whole)
    # Nothing is done twice: 2 methods × 2 seeds, 2 candidates and 1 further seed of the chosen, 12 steps each.
    assert count + sum(record["event"] == "progress" for record in resumed) == 7 * 12


@slow
@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.05), (2, 0.0)])
def test_killed_at_any_moment_it_resumes_to_the_same_table(whole, tmp_path, workers, seconds):
    """SIGKILL after the first step is on disk, with a half-written line left behind for good measure.

    At the first step nearly all is left to the resumed comparison: two worker processes give the results of one.
    """
    overrides = [*SMALL, f"workers={workers}"]
    command = [sys.executable, "-m", "gradhomog", "compare", "--out", str(tmp_path / "out")]
    command += [argument for override in overrides for argument in ("--set", override)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    log = tmp_path / "out" / folders.LOG
    while process.poll() is None and not (log.exists() and b'"step"' in log.read_bytes()):
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with log.open("ab") as file:
        file.write(b'{"event": "resu')
    outcome = compare(load(None, overrides), tmp_path / "out", resume=True)
    assert results(outcome.folder) == results(whole.folder)
    assert table(outcome) == table(whole)


FAULTY = """
import gradhomog
class Faulty(gradhomog.Homogenizer):
    def mix(self, step):
        if step.number == 4:
            raise RuntimeError("out of ideas")
        return __import__("torch").ones(step.tasks)
@gradhomog.hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Faulty, summary="fails at its fifth step")
"""


def test_a_method_that_fails_is_reported_and_the_others_finish(gradhomog_install, tmp_path):
    gradhomog_install("faulty-dist", FAULTY, plugin="faulty")
    config = load(None, [*SMALL, 'homogenizers=["none", "faulty"]', "seeds=1"])
    outcome = compare(config, tmp_path / "out")
    (error,) = outcome.failures.values()
    assert "'faulty' of faulty-dist" in error
    assert "RuntimeError: out of ideas" in error
    assert [row.label for row in outcome.summary.rows if row.seeds] == ["plain"]
    records = ResultLog.read(outcome.folder / folders.LOG)
    assert any(r["event"] == "failed" for r in records)
    assert any(r["event"] == "step" and r["step"] == 4 for r in records if "faulty" in r.get("run", ""))


SEEING = """
import gradhomog, torch
class Even(gradhomog.Homogenizer):
    def mix(self, step):
        return torch.ones(step.tasks)
@gradhomog.hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Even, summary="weighs all alike, and observes")
SEEN = []
@gradhomog.hookimpl
def gradhomog_observers(config):
    assert config["learner"] == "maml"
    return lambda event, record: SEEN.append((event, record))
"""


def test_an_observer_sees_every_record_of_the_log(gradhomog_install, tmp_path):
    gradhomog_install("seeing-dist", SEEING, plugin="seeing")
    outcome = compare(load(None, [*SMALL, 'homogenizers=["seeing"]', "seeds=1"]), tmp_path / "out")
    events = [event for event, _ in sys.modules["seeing_dist"].SEEN]
    assert events == [record["event"] for record in ResultLog.read(outcome.folder / folders.LOG)]
    assert (events.count("result"), events.count("step")) == (1, 7)


def test_a_result_is_on_disk_before_the_next_run_starts(small, tmp_path):
    lengths = []

    def look(record):
        if record["event"] == "progress" and record["step"] == 1:
            lines = (tmp_path / "out" / folders.LOG).read_text(encoding="utf-8").splitlines()
            lengths.append(sum(json.loads(line)["event"] == "result" for line in lines))

    compare(load(None, [*SMALL, 'homogenizers=["none", "pcgrad"]']), tmp_path / "out", progress=look)
    assert lengths == [0, 1, 2, 3]


@slow
def test_workers_that_cannot_start_are_reported_and_not_called_a_success(tmp_path):
    """A script without a main guard: its worker processes run the script instead of a worker."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from gradhomog.experiments.execution.comparison import compare\n"
        "from gradhomog.experiments.config.schema import load\n"
        f"outcome = compare(load(None, {[*SMALL, 'workers=2']!r}), Path({str(tmp_path / 'out')!r}))\n"
        "print(len(outcome.failures), next(iter(outcome.failures.values())))\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("6 no worker process could start"), done.stdout + done.stderr
    assert '__name__ == "__main__"' in done.stdout


@slow
def test_a_candidate_that_fails_leaves_the_choice_to_the_others(gradhomog_install, tmp_path):
    gradhomog_install("faulty-dist", FAULTY, plugin="faulty")
    config = load(None, [*SMALL, 'homogenizers=["none", "faulty | pcgrad"]'])
    outcome = compare(config, tmp_path / "out")
    again = compare(config, tmp_path / "out", resume=True)
    for one in (outcome, again):
        row = one.summary.rows[1]
        assert (row.label, row.chosen, len(row.seeds)) == ("faulty | pcgrad (tuned)", "pcgrad", 2)
        assert len(one.failures) == 1


@slow
def test_an_interrupt_while_workers_start_prints_no_traceback(tmp_path):
    command = [sys.executable, "-m", "gradhomog", "compare", "--out", str(tmp_path / "out"), "--set", "workers=2"]
    command += [argument for override in SMALL if "workers" not in override for argument in ("--set", override)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    while process.poll() is None and not (tmp_path / "out" / folders.LOG).exists():
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "--resume" in errors


@slow
def test_a_sigterm_to_all_processes_stops_as_an_interrupt_does(whole, tmp_path):
    """As `timeout` and schedulers send it: the parent is asked to stop, its workers are not killed under it."""
    overrides = [*SMALL, "workers=2", "train.steps=400"]
    command = [sys.executable, "-m", "gradhomog", "compare", "--out", str(tmp_path / "out")]
    command += [argument for override in overrides for argument in ("--set", override)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    log = tmp_path / "out" / folders.LOG
    while process.poll() is None and not (log.exists() and b'"step"' in log.read_bytes()):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not any(record["event"] == "failed" for record in ResultLog.read(log))
    assert list((tmp_path / "out" / "runs").glob("*/checkpoint.pt"))


FAULTY_WITH_SEED_1 = FAULTY.replace("step.number == 4", "step.number == 4 and __import__('torch').initial_seed() == 1")


@slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_tuned_method_that_fails_with_a_later_seed_is_tried_once(gradhomog_install, tmp_path, workers):
    """Its failure must not be taken for a candidate's: that would decide the tuning again, and run it again."""
    gradhomog_install("faulty-dist", FAULTY_WITH_SEED_1, plugin="faulty")
    failures = []

    def watch(record):
        failures.extend([record] if record["event"] == "failed" else [])
        assert len(failures) < 3

    overrides = [*SMALL, f"workers={workers}", 'homogenizers=["none", "faulty | faulty + static"]', "seeds=3"]
    outcome = compare(load(None, overrides), tmp_path / "out", progress=watch)
    assert len(failures) == 1
    assert "out of ideas" in failures[0]["error"]
    assert outcome.summary.rows[1].seeds == (0, 2)

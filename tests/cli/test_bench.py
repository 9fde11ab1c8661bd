"""`gradhomog bench` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from gradhomog.cli import main
from gradhomog.experiments.profiling import maml_peers
from tests.experiments.conftest import SMALL

SETTINGS = [argument for override in SMALL for argument in ("--set", override)]
QUICK = ["--rounds", "3", "--seconds", "0.01"]


@pytest.mark.slow
def test_the_table_has_the_run_files_methods_with_plain_twice(capsys):
    assert main(["bench", *SETTINGS, *QUICK]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("one meta-step of maml")
    assert [line.split("  ")[0] for line in lines[4:8]] == ["plain", "plain again", "pcgrad", "static"]
    assert "to plain" in lines[2]
    assert "second plain learner" in out


def test_json_is_data_with_versions_and_machine(capsys):
    assert main(["bench", *SETTINGS, *QUICK, "--homogenizer", "mgda", "--threads", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"kernel", "versions", "machine", "tables"}
    (found,) = data["tables"]
    assert set(found) == {"title", "references", "rows", "failures", "notes"}
    assert [row["label"] for row in found["rows"]] == ["plain", "plain again", "mgda"]
    row = found["rows"][2]
    assert set(row) == {
        "label", "seconds", "ratios", "peak_bytes", "held_bytes", "added_bytes", "cosine", "beyond", "to_peer",
    }  # fmt: skip
    spread = {"median", "low", "high", "quarter", "three_quarters", "minimum", "maximum", "n"}
    assert set(row["seconds"]) == set(row["ratios"]["plain"]) == spread
    assert row["ratios"]["plain"]["n"] == 3


def test_a_kernel_is_timed_beside_its_peers(capsys):
    shape = ["--homogenizer", "none", "--shape", "2x3x4"]
    assert main(["bench", "--kernel", "rotate", *shape, *QUICK]) == 0
    assert "torch orthogonal, cayley" in capsys.readouterr().out
    assert main(["bench", "--kernel", "isi", *shape[:3], "2x3x8x8", *QUICK, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kernel"] == "isi"
    assert data["tables"][0]["references"] == ["convolution", "published form", "unfold form"]


@pytest.mark.slow
def test_a_learner_is_timed_beside_its_peers(capsys):
    given = ["--kernel", "maml", "--learner", "maml", "--learner", "maml(inner_steps=1)", "--shape", "2x4", *QUICK]
    assert main(["bench", *given, "--processor-time"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("one meta-step of MAML, 5 inner steps: mlp, two layers of 4, 2 sinusoids")
    labels = [line.split("  ")[0] for line in lines[4:11]]
    assert labels[0] == "hand-written loop"
    assert labels[-2:] == ["maml", "maml(inner_steps=1)"]
    assert main(["bench", *given, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kernel"] == "maml"
    *_, same, fewer = data["tables"][0]["rows"]
    assert same["cosine"] == pytest.approx(1, abs=1e-5)
    assert fewer["cosine"] < same["cosine"]


def test_steps_with_several_tasks_are_timed_beside_torchjd(capsys):
    given = ["--homogenizer", "pcgrad", *QUICK, "--shape"]
    assert main(["bench", "--kernel", "combine", *given, "2x50", "--shape", "3x50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "one step on J, the gradients of 2 tasks by 50 parameters, 1 thread"
    assert "one step on J, the gradients of 3 tasks by 50 parameters, 1 thread" in lines
    assert [line.split("  ")[0] for line in lines[4:10]][3:] == ["floor again", "pcgrad", "torchjd PCGrad"]
    assert main(["bench", "--kernel", "backward", *given, "2x3x4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kernel"] == "backward"
    assert data["tables"][0]["references"] == ["by hand", "sum(losses).backward()"]
    assert "backward pcgrad" in [row["label"] for row in data["tables"][0]["rows"]]


@pytest.mark.slow
def test_processor_time_does_not_count_waiting(monkeypatch, capsys):
    step = maml_peers.by_hand
    monkeypatch.setitem(maml_peers.PEERS, maml_peers.BY_HAND, lambda *given: (time.sleep(0.3), step(*given)))
    given = ["bench", "--kernel", "maml", "--learner", "maml(inner_steps=0)", "--shape", "1x2", *QUICK, "--json"]

    def found():
        assert main(given) == 0
        return json.loads(capsys.readouterr().out)["tables"][0]

    assert found()["rows"][0]["seconds"]["median"] > 0.3
    given.append("--processor-time")
    assert found()["rows"][0]["seconds"]["median"] < 0.3
    assert found()["notes"][-1].startswith("Times are what this process computed")


def test_a_homogenizer_that_fails_is_exit_code_1_with_the_others_in_the_table(gradhomog_install, capsys):
    from tests.experiments.execution.test_comparison import FAULTY

    gradhomog_install("faulty-dist", FAULTY, plugin="faulty")
    assert main(["bench", *SETTINGS, "--homogenizer", "faulty", "--rounds", "4", "--seconds", "9"]) == 1
    printed = capsys.readouterr()
    assert "faulty failed: " in printed.err
    assert "plain again" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "nowhere.toml: the run file cannot be read"),
        (["--set", "train.stpes=3"], "Did you mean `train.steps`?"),
        (["--homogenizer", "pcgard", *SETTINGS], "Did you mean 'pcgrad'?"),
        (["--set", 'domains.train=["nowhere.npz"]'], "nowhere.npz"),
        (["--shape", "2x3x4"], "--shape is for --kernel"),
        (["--kernel", "rotate", "my.toml"], "--kernel takes no run file"),
        (["--kernel", "isi", "--set", "threads=2"], "--kernel takes no run file and no --set"),
        (["--kernel", "rotate", "--shape", "4x75"], "tasks x queries x features, each at least 1; got 4x75"),
        (["--kernel", "rotate", "--homogenizer", "rotaet"], "rotaet"),
        (["--kernel", "maml", "--homogenizer", "pcgrad"], "--kernel maml takes --learner, no --homogenizer"),
        (["--kernel", "isi", "--learner", "maml"], "--kernel isi takes --homogenizer, no --learner"),
        (["--kernel", "combine", "--learner", "maml"], "--kernel combine takes --homogenizer, no --learner"),
        (["--kernel", "combine", "--shape", "4x75x2"], "tasks x params, each at least 1; got 4x75x2"),
        (["--kernel", "combine", "--homogenizer", "pcgard"], "Did you mean 'pcgrad'?"),
        (["--kernel", "backward", "--shape", "4x75"], "tasks x inputs x hidden (mlp) or tasks x channels x"),
        (["--kernel", "backward", "my.toml"], "--kernel takes no run file"),
        (["--learner", "maml"], "--learner is for --kernel maml"),
        (["--kernel", "maml", "--learner", "mamll"], "Did you mean 'maml'?"),
        (["--kernel", "maml", "--shape", "4x1x28"], "tasks x hidden units (sinusoids), each at least 1; got 4x1x28"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(arguments, message, capsys):
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "2"], "at least 3; got '2'"),
        (["--seconds", "0"], "above 0; got '0'"),
        (["--seconds", "nan"], "above 0; got 'nan'"),
        (["--threads", "0"], "at least 1"),
        (["--kernel", "rotate", "--shape", "4xbig"], "whole numbers with x between them; got '4xbig'"),
        (["--kernel", "matmul"], "invalid choice: 'matmul'"),
    ],
)
def test_a_wrong_number_is_refused_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_its_module_imports_nothing_heavy():
    code = "import sys, gradhomog.cli.bench; assert not {'torch', 'numpy', 'tqdm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""`gradhomog diagnose`: table, JSON data, files, exit codes, and messages for invalid input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gradhomog.cli import main
from tests.experiments.conftest import SMALL

SETTINGS = [argument for override in SMALL for argument in ("--set", override)]
QUICK = ["--batches", "4", "--seconds", "0"]


def test_the_table_is_by_domain_and_by_pair_with_a_recommendation(capsys):
    assert main(["diagnose", *SETTINGS, *QUICK]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "maml after 1 of 12 steps, without homogenizers, seed 0"
    assert lines[3].startswith("4 batches, ")
    for start in (
        "task ",
        "functions:sinusoid ",
        "functions:line ",
        "functions:step ",
        "pair ",
        "Recommendation",
        "- [",
    ):
        assert any(line.startswith(start) for line in lines), start


def test_json_is_strict_and_the_folder_is_written_once(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ["diagnose", *SETTINGS, *QUICK, "--at", "0", "--json", "--out", str(tmp_path / "new")]
    assert main(arguments) == 0

    def reject(constant):
        raise AssertionError(constant)

    data = json.loads(capsys.readouterr().out, parse_constant=reject)
    assert set(data) == {"learner", "seed", "step", "steps", "diagnosis", "overhead"}
    assert (data["step"], data["overhead"], data["diagnosis"]["batches"]) == (0, None, 4)
    assert {"code", "text"} == set(data["diagnosis"]["recommendation"][0])
    names = sorted(path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*.*"))
    assert names == ["diagnosis.json", "diagnosis.txt", "figures/diagnosis.png", "figures/diagnosis.svg"]
    assert main(arguments) == 2
    assert "already has a diagnosis" in capsys.readouterr().err


def test_a_homogenizer_that_fails_is_exit_code_1_after_the_diagnosis(gradhomog_install, capsys):
    from tests.experiments.execution.test_comparison import FAULTY

    gradhomog_install("faulty-dist", FAULTY.replace("number == 4", "number == 3"), plugin="faulty")
    pipelines = ["--set", 'homogenizers=["none", "faulty"]']
    assert main(["diagnose", *SETTINGS, *pipelines, "--batches", "3", "--seconds", "0.01"]) == 1
    printed = capsys.readouterr()
    assert "faulty failed: " in printed.err
    assert "Recommendation" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "nowhere.toml: there is no such file"),
        (["--set", "train.stpes=3"], "Did you mean `train.steps`?"),
        (["--set", 'domains.train=["nowhere.npz"]'], "nowhere.npz"),
        (["--set", "problem.name=regresion"], "Did you mean 'regression'?"),
    ],
)
def test_invalid_input_is_one_message_and_exit_code_2(arguments, message, capsys):
    assert main(["diagnose", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batches", "2"], "from 3 to 1000000; got '2'"),
        (["--at", "-1"], "from 0 to 1000000; got '-1'"),
        (["--seconds", "nan"], "at least 0; got 'nan'"),
    ],
)
def test_an_invalid_number_is_rejected_by_the_parser(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["diagnose", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_the_module_imports_no_heavy_library():
    code = "import sys, gradhomog.cli.diagnose; assert not {'torch', 'numpy', 'tqdm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

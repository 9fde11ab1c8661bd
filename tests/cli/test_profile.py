"""`gradhomog profile` and `gradhomog diagnose`: table, JSON data, files, exit codes, and messages for invalid input."""

import json

from gradhomog.cli import main
from tests.experiments.conftest import SMALL

SETTINGS = [argument for override in SMALL for argument in ("--set", override)]
QUICK = ["--rounds", "3", "--seconds", "0.01"]
FEW = ["--batches", "4", "--seconds", "0"]


def test_json_is_data_with_versions_and_machine(capsys):
    options = ["--homogenizer", "mgda", "--threads", "1", "--processor-time", "--json"]
    assert main(["profile", *SETTINGS, *QUICK, *options]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"versions", "machine", "tables"}
    (found,) = data["tables"]
    assert set(found) == {"title", "reference", "rows", "failures", "notes"}
    assert found["notes"][-1].startswith("Times are processor time")
    assert [row["label"] for row in found["rows"]] == ["plain", "plain again", "mgda"]
    row = found["rows"][2]
    assert set(row) == {"label", "seconds", "ratio", "peak_bytes", "state_bytes", "added_bytes"}
    quantiles = {"median", "low", "high", "n"}
    assert set(row["seconds"]) == set(row["ratio"]) == quantiles
    assert row["ratio"]["n"] == 3


def test_the_table_is_by_domain_and_by_pair_with_a_recommendation(capsys):
    assert main(["diagnose", *SETTINGS, *FEW]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "maml after 1 of 12 steps, without homogenizers, seed 0"
    assert lines[3].startswith("4 batches, ")
    for start in ("task ", "functions:sinusoid ", "functions:line ", "pair ", "Recommendation", "- ["):
        assert any(line.startswith(start) for line in lines), start


def test_json_is_strict_and_the_folder_is_written_once(capsys, tmp_path):
    arguments = ["diagnose", *SETTINGS, *FEW, "--at", "0", "--json", "--out", str(tmp_path / "new")]
    assert main(arguments) == 0

    def reject(constant):
        raise AssertionError(constant)

    data = json.loads(capsys.readouterr().out, parse_constant=reject)
    assert set(data) == {"learner", "seed", "step", "steps", "diagnosis", "overhead"}
    assert (data["step"], data["overhead"], data["diagnosis"]["batches"]) == (0, None, 4)
    assert {"code", "text"} == set(data["diagnosis"]["recommendation"][0])
    names = sorted(path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*.*"))
    assert names == ["diagnosis.json", "diagnosis.txt"]
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

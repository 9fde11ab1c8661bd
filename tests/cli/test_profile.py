"""`gradhomog profile`: table, JSON data, exit codes, and messages for invalid input."""

from __future__ import annotations

import argparse
import json
import time

import pytest

from gradhomog.cli import main
from gradhomog.cli.profile import clock
from tests.experiments.conftest import SMALL

SETTINGS = [argument for override in SMALL for argument in ("--set", override)]
QUICK = ["--rounds", "3", "--seconds", "0.01"]


@pytest.mark.slow
def test_the_table_has_the_run_files_methods_with_plain_twice(capsys):
    assert main(["profile", *SETTINGS, *QUICK]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("one training step of maml")
    assert [line.split("  ")[0] for line in lines[4:8]] == ["plain", "plain again", "pcgrad", "static"]
    assert "to plain" in lines[2]
    assert "second plain learner" in out


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


def test_processor_time_does_not_include_waiting():
    read = clock(argparse.Namespace(processor_time=True))
    start = read()
    time.sleep(0.2)
    assert read() - start < 0.1


def test_a_homogenizer_that_fails_is_exit_code_1_with_the_others_in_the_table(gradhomog_install, capsys):
    from tests.experiments.execution.test_comparison import FAULTY

    gradhomog_install("faulty-dist", FAULTY, plugin="faulty")
    assert main(["profile", *SETTINGS, "--homogenizer", "faulty", "--rounds", "4", "--seconds", "9"]) == 1
    printed = capsys.readouterr()
    assert "faulty failed: " in printed.err
    assert "plain again" in printed.out

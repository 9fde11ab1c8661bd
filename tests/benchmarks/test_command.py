"""The command line of benchmarks: tables as Markdown and JSON, output files, invalid input."""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks import backward, combine, maml, maml_peers, rotation, self_information
from tests.benchmarks.command import main

FOLDER = Path(__file__).parent
BENCHMARKS = [backward.BENCHMARK, combine.BENCHMARK, maml.BENCHMARK, rotation.BENCHMARK, self_information.BENCHMARK]
QUICK = ["--rounds", "3", "--seconds", "0.01"]

every = pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)


def run(benchmark, *arguments):
    return main(benchmark, "description", [*arguments, *QUICK])


def test_a_table_is_printed_as_markdown_and_written_with_its_command(tmp_path, capsys):
    path = tmp_path / "combine.md"
    given = ["--homogenizer", "pcgrad", "--shape", "2x50", "--shape", "3x50"]
    assert run(combine.BENCHMARK, *given, "--out", str(path)) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "## one step on J, the gradients of 2 tasks by 50 parameters, 1 thread"
    assert "## one step on J, the gradients of 3 tasks by 50 parameters, 1 thread" in lines
    assert len({line.count("|") for line in lines[2:10]}) == 1
    written = path.read_text(encoding="utf-8")
    assert written.endswith(out)
    assert "$ python -m tests.benchmarks.combine --homogenizer pcgrad --shape 2x50" in written


def test_json_has_the_columns_of_the_table_in_each_row(capsys):
    assert run(combine.BENCHMARK, "--homogenizer", "pcgrad", "--shape", "2x50", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"benchmark", "versions", "machine", "tables"}
    assert data["benchmark"] == "combine"
    rows = {row["label"]: row for row in data["tables"][0]["rows"]}
    assert rows["pcgrad"]["to peer"]["median"] > 0
    assert rows["floor"]["to peer"] is None


@pytest.mark.slow
def test_processor_time_does_not_include_waiting(monkeypatch, capsys):
    step = maml_peers.by_hand
    monkeypatch.setitem(maml_peers.PEERS, maml_peers.BY_HAND, lambda *given: (time.sleep(0.3), step(*given)))

    def found(*more):
        assert run(maml.BENCHMARK, "--learner", "maml(inner_steps=0)", "--shape", "1x2", "--json", *more) == 0
        return json.loads(capsys.readouterr().out)["tables"][0]

    assert found()["rows"][0]["seconds"]["median"] > 0.3
    processor = found("--processor-time")
    assert processor["rows"][0]["seconds"]["median"] < 0.3
    assert processor["notes"][-1].startswith("Times are processor time")


def test_a_workload_that_fails_is_exit_code_1_with_the_others_in_the_table(monkeypatch, capsys):
    class Failing:
        def __call__(self, rows):
            raise ArithmeticError("no convergence")

    monkeypatch.setattr("torchjd.aggregation.PCGrad", Failing)
    assert run(combine.BENCHMARK, "--homogenizer", "pcgrad", "--shape", "2x50") == 1
    out = capsys.readouterr().out
    assert "Failed: torchjd PCGrad: TorchJD's PCGrad raised ArithmeticError: no convergence" in out
    assert "| floor again" in out


@every
def test_the_name_of_a_benchmark_is_that_of_its_module(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [benchmark.name, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(FOLDER / f"{benchmark.name}.py"), run_name="__main__")
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: python -m tests.benchmarks.{benchmark.name} " in out
    assert f"--{benchmark.kind} " in out


@every
@pytest.mark.parametrize("sizes", [1, 5, 0])
def test_a_shape_that_matches_no_form_is_rejected(benchmark, sizes, capsys):
    shape = "x".join(["4"] * sizes) or "x".join(["0"] * (benchmark.forms[0].count(" x ") + 1))
    assert run(benchmark, "--shape", shape) == 2
    err = capsys.readouterr().err
    assert f"`--shape` must be {' or '.join(benchmark.forms)}, each at least 1; got {shape}." in err


@every
def test_an_unknown_name_is_rejected_before_timing(benchmark, capsys):
    wrong, right = {"learner": ("mamll", "maml"), "homogenizer": ("pcgard", "pcgrad")}[benchmark.kind]
    assert run(benchmark, f"--{benchmark.kind}", wrong, "--shape", "x".join(map(str, benchmark.shapes[0]))) == 2
    assert f"Did you mean '{right}'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "4xbig"], "integers separated by x; got '4xbig'"),
        (["--learner", "maml"], "unrecognized arguments: --learner maml"),
        (["--out", "nowhere/table.md"], "must be a file in an existing folder; got 'nowhere/table.md'"),
        (["--out", ""], "must be a file in an existing folder; got ''"),
    ],
)
def test_an_invalid_option_is_rejected(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        run(rotation.BENCHMARK, *arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err

"""The command of each benchmark: rows of its tables, output as Markdown, JSON and file, invalid input."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from gradhomog import OptionError
from tests.benchmarks import backward, combine, maml, overhead, ranks

pytestmark = pytest.mark.slow

QUICK = ["--rounds", "3", "--seconds", "0.01"]

MODULES = [backward, combine, maml, overhead, ranks]
every = pytest.mark.parametrize("benchmark", [module.BENCHMARK for module in MODULES], ids=lambda one: one.name)


def run(module, *arguments):
    return module.BENCHMARK.main("description", [*arguments, *QUICK])


FLOORS = [combine.FLOOR, combine.PLAIN, combine.READ, combine.SECOND_FLOOR]
PEERS = [f"torchjd {name}{chunk}" for name in ("Mean", "UPGrad") for chunk in ("", ", chunk 1")]
OURS = [f"backward {name}{level}" for name in ("pcgrad", "mgda", "upgrad") for level in ("", ', level="features"')]
TABLES = [
    (backward, "3x4x6", [], [*backward.MEANS[:4], *OURS, *PEERS]),
    (backward, "2x3x16x4", ["mgda"], [backward.BY_HAND, backward.SUMMED, *OURS[2:4], *PEERS]),
    (backward, "3x4x6", ["tracked"], [backward.BY_HAND, backward.SUMMED, "backward tracked", *PEERS]),
    (combine, "3x50", ["pcgrad", 'pcgrad(scale="paper")', "static"],
     [*FLOORS, "pcgrad", "torchjd PCGrad", 'pcgrad(scale="paper")', "static"]),
    *((overhead, shape, ["none", "upgrad"], [backward.SUMMED, backward.BY_HAND, "none", "upgrad"])
      for shape in ("2x16", "2x1x8", "2x3x16x4")),
    (ranks, "3x4x6", ["none"], [ranks.PLAIN, ranks.ALONE, "none, batch", "none, local"]),
    (maml, "2x3x16x4", [],
     [*maml.PEERS, *maml.EVERYWHERE, *maml.FOR_IMAGES, maml.VECTORIZED, maml.CHANNELS_LAST]),
    (maml, "2x3x16x4", ["protonet"], [*maml.PEERS, "protonet"]),
]  # fmt: skip


@pytest.mark.parametrize(("module", "shape", "texts", "labels"), TABLES)
def test_the_table_has_the_peers_and_each_expression(module, shape, texts, labels, capsys):
    chosen = [word for text in texts for word in (f"--{module.BENCHMARK.kind}", text)]
    assert run(module, "--shape", shape, "--json", *chosen) == 0
    data = json.loads(capsys.readouterr().out)
    [table] = data["tables"]
    assert (set(data), data["benchmark"]) == ({"benchmark", "versions", "machine", "tables"}, module.BENCHMARK.name)
    assert [row["label"] for row in table["rows"]] == labels
    assert all(row["seconds"]["median"] > 0 and row["ratio"]["n"] > 0 for row in table["rows"])
    assert table["failures"] == {}


def test_a_learner_is_compiled_before_timing_or_omitted_with_the_reason(monkeypatch):
    text, calls = "maml(compile=true)", []
    monkeypatch.setattr("gradhomog.learners.learner.Learner.step", lambda learner, *given: calls.append(learner))
    steps, _ = maml.steps(["maml", text], maml.sinusoids(3, 4))
    assert calls == [steps[text].take.__self__]

    def fail(*given):
        raise OptionError("no C++ compiler found\nand much more")

    monkeypatch.setattr("gradhomog.learners.learner.Learner.step", fail)
    steps, notes = maml.steps([text], maml.sinusoids(3, 4))
    assert (set(steps), notes) == (set(maml.PEERS), [f"{text} is omitted: no C++ compiler found"])


def test_tables_are_printed_as_markdown_with_the_command(capsys):
    assert run(combine, "--homogenizer", "pcgrad", "--shape", "2x50", "--shape", "3x50") == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [f"## one step on J, the gradients of {tasks} tasks by 50 parameters" for tasks in (2, 3)]
    assert [line for line in lines if line.startswith("## ")] == titles
    assert {line.count("|") for line in lines if line.startswith("|")} == {9}
    assert lines[1].startswith("$ python -m tests.benchmarks.combine --homogenizer pcgrad --shape 2x50")


def test_a_peer_that_raises_is_exit_code_1_with_the_others_in_the_table(monkeypatch, capsys):
    class Failing:
        def __call__(self, rows):
            raise ArithmeticError("no convergence")

    monkeypatch.setattr("torchjd.aggregation.PCGrad", Failing)
    assert run(combine, "--homogenizer", "pcgrad", "--shape", "2x50") == 1
    out = capsys.readouterr().out
    assert "Failed: torchjd PCGrad: TorchJD's PCGrad raised ArithmeticError: no convergence" in out
    assert "| floor again" in out


@every
def test_the_name_of_a_benchmark_is_that_of_its_module(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [benchmark.name, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(Path(__file__).with_name(f"{benchmark.name}.py")), run_name="__main__")
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: python -m tests.benchmarks.{benchmark.name} " in out
    assert f"--{benchmark.kind} " in out

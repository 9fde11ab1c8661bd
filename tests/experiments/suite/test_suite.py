"""The suite: scores against numbers computed by hand, the protocol on a small problem, and files that were cut off."""

import ast
import dataclasses
import importlib.util
import json
import math
import os
import re
import sys

import pytest
import torch
from scipy.stats import ttest_rel

from gradhomog import ConfigError
from gradhomog.cli import main
from gradhomog.experiments.runs import Run
from gradhomog.experiments.suite import execute, protocol, row_files
from gradhomog.experiments.suite import problems as suite_problems
from gradhomog.experiments.suite.problems import CHECKPOINTS, FACTORS, GRID, STATIC, SuiteProblem, problems
from gradhomog.experiments.suite.protocol import SuiteRun, compute_row, train
from gradhomog.experiments.suite.row_files import FILE, append_row, by_row, read_results
from gradhomog.experiments.suite.scores import Scores
from gradhomog.experiments.suite.tables import agreement, leaderboard, problem_table
from gradhomog.experiments.training.trainer import make_trainable
from gradhomog.registry import Registry, using
from tests.hostile.plugins import plugin

SMALL = SuiteProblem(
    "small", "Two losses of a point.", "f1", 16, [0.01, 0.03], {"problem": {"name": "landscape"}}, best=-16.0
)

NOTHING = plugin("def mix(self, step): return torch.ones(step.tasks, dtype=torch.float64)")


def run(method, seed, error, *, factor=1.0, rate=0.1, validation=None, seconds=8.0, failure=""):
    errors = (*(error * (2 - share) for share in CHECKPOINTS[:-1]), error)
    known = (error if validation is None else validation,) * len(CHECKPOINTS)
    return SuiteRun("synthetic", method, factor, seed, rate, known, errors, seconds, 100, "", "", "", failure)


@pytest.fixture
def scores():
    """Two seeds of five methods; static weights of 10 have the lowest validation error, not the lowest test error."""
    problem = SuiteProblem("synthetic", "?", "a", 8, [0.1], {})
    static = [run(STATIC, seed, 1.0 if w == 10 else 0.5, factor=w, validation=1.0 if w == 10 else 2) for w in GRID
              for seed in (0, 1)]  # fmt: skip
    rows = [
        static,
        [run("plain", seed, 1.0 + seed, factor=factor) for factor in FACTORS for seed in (0, 1)],
        [run("twice", seed, 2.0 * factor, factor=factor, seconds=16.0) for factor in FACTORS for seed in (0, 1)],
        [run("broken", seed, math.inf, factor=factor, failure="NaN") for factor in FACTORS for seed in (0, 1)],
        [run("tracked", seed, 1.5) for seed in (0, 1)],
    ]
    return Scores(by_row(rows), [problem])


def test_scores_are_those_computed_by_hand(scores):
    found = {score.method: score for score in scores.scores()}
    assert (found["plain"].regret, found["plain"].time, found["plain"].memory) == (0.5, 1, 1)
    assert (found["twice"].regret, found["twice"].misscaled, found["twice"].worst_misscaled) == (1, 199, 199)
    assert (found["twice"].time, found["twice"].at_plain_time) == (2, 2 * 1.5 - 1)  # half of its steps
    assert found["plain"].at_plain_time == found["plain"].regret
    assert (found["broken"].regret, found["broken"].failures, found["broken"].worse) == (math.inf, 6, 1)
    assert math.isnan(found["tracked"].misscaled)
    assert [found[name].rank[0] for name in (STATIC, "plain", "tracked", "twice", "broken")] == [1, 2.5, 2.5, 4, 5]
    assert next(iter(found)) == STATIC
    (problem,) = scores.problems
    regret = scores.regret(problem, "plain")
    assert (regret.mean, regret.half_width) == (0.5, pytest.approx(12.706 * 0.5, rel=1e-4))  # t of 1 degree of freedom


def test_p_values_are_holms_of_paired_t_tests(scores):
    (problem,) = scores.problems
    rows = {row.method: row for row in scores.comparisons(problem)}
    one = ttest_rel([2, 2], [1, 2]).pvalue
    assert rows["twice"].p_value == pytest.approx(min(1, 4 * one))
    assert math.isnan(rows["plain"].p_value)
    assert rows["broken"].p_value == 1


def test_a_plugin_that_does_nothing_has_the_row_of_the_plain_mean_and_a_renamed_mgda_that_of_mgda(gradhomog_install):
    gradhomog_install("nothing", NOTHING)
    gradhomog_install("renamed", "", plugin="renamed", target="gradhomog_plugins.mgda")
    rows = {method: compute_row(SMALL, method) for method in ("plain", "nothing", "mgda", "renamed")}
    results = {
        method: [(one.factor, one.rate, one.validation, one.errors) for one in runs] for method, runs in rows.items()
    }
    assert results["nothing"] == results["plain"] != results["mgda"] == results["renamed"]
    assert [(one.factor, one.seed) for one in rows["plain"]] == [(1, 0), (1, 0), (0.01, 0), (100, 0)]  # two rates


def test_the_plain_mean_of_misscaled_losses_is_that_of_static_weights():
    assert train(SMALL, "plain", 0, 0.03, 100.0).errors == train(SMALL, STATIC, 0, 0.03, 100.0).errors


@pytest.mark.parametrize("method", ["mgda", STATIC])
def test_three_seeds_select_the_rate(method, monkeypatch):
    """The first seed alone would select 0.1, the sum over five seeds 0.3; a rate with a failed run is not selected."""
    validation = {0.1: (1, 4, 4, 0, 0), 0.2: (2, 2, 2, 9, 9), 0.3: (3, 3, 3, 0, 0), 0.4: (0, 0, math.inf, 0, 0)}

    def trained(problem, method, seed, rate, factor):
        return run(method, seed, rate, factor=factor, rate=rate, validation=validation[rate][seed])

    monkeypatch.setattr(protocol, "train", trained)
    problem = SuiteProblem("synthetic", "?", "task 0", 8, [*validation], {"problem": {"name": "shared_unit"}})
    runs = compute_row(problem, method)
    trials = [one for one in runs if one.factor == 1]
    assert len(trials) == 4 * 3 + 2  # the other rates stay in the row
    cells = row_files.by_factor(runs)
    assert {factor: [(one.seed, one.error) for one in cell] for factor, cell in cells.items()} == {
        factor: [(seed, 0.2) for seed in range(5)] for factor in problem.factors(method)
    }


def test_a_run_that_raises_is_a_record_with_infinite_errors(gradhomog_install):
    gradhomog_install("failing", NOTHING.replace("torch.ones", "1 / 0 * torch.ones"))
    failed = train(SMALL, "failing", 0, 0.03, 1.0)
    assert set(failed.errors) == {math.inf}
    assert "ZeroDivisionError" in failed.failure


def test_a_file_that_was_cut_off_keeps_its_whole_rows_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(suite_problems, "problems", lambda: {"small": SMALL})
    rows = {method: compute_row(SMALL, method) for method in ("plain", "pcgrad")}
    append_row(tmp_path, rows["plain"])
    with (tmp_path / FILE).open("a") as file:
        file.write('[{"problem": "sm')
    assert list(read_results(tmp_path)) == [("small", "plain")]
    append_row(tmp_path, rows["pcgrad"])
    found = read_results(tmp_path)
    assert [one.errors for one in found["small", "pcgrad"]] == [
        tuple(float(f"{error:.5g}") for error in one.errors) for one in rows["pcgrad"]
    ]
    assert agreement(found, found).texts[1:] == [["plain", "3", "3", "3"], ["pcgrad", "3", "3", "3"]]


def test_every_edit_of_a_file_is_an_error_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(suite_problems, "problems", lambda: {"small": SMALL})
    for seed in range(2):
        append_row(tmp_path, [train(SMALL, "plain", seed, 0.03, 1.0)])
    first, second = (tmp_path / FILE).read_text().splitlines()
    content = json.loads(second)
    edits = ["{}", "[]", "1", second[:-9], second.replace("small", "large"), json.dumps({"runs": content["runs"]})]
    for name, value in content["runs"][0].items():  # a better error, another type, a missing entry, ...
        for changed in (1e-9, -1, "x", None, [], {}, [1e-9] * 6):
            edits += [json.dumps({**content, "runs": [{**content["runs"][0], name: changed}]})] * (changed != value)
        without = {key: each for key, each in content["runs"][0].items() if key != name}
        edits.append(json.dumps({**content, "runs": [without]}))
    assert len(edits) > 100
    for line in edits:
        (tmp_path / FILE).write_text(f"{first}\n{line}\n")
        with pytest.raises(ConfigError, match=rf"{FILE}, line 2 is damaged: .* Remove the line"):
            read_results(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are those of Unix")
def test_a_file_that_is_no_regular_file_is_an_error(tmp_path):
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(ConfigError, match="must be a regular file; got a FIFO"):
        read_results(tmp_path)


def test_tuned_weights_without_error_are_compared(scores):
    (problem,) = scores.problems
    zero = [run(STATIC, seed, 0.0, factor=weight) for weight in GRID for seed in (0, 1)]
    rows = [
        zero,
        [run("plain", seed, 0.5, factor=factor) for factor in FACTORS for seed in (0, 1)],
        [
            dataclasses.replace(run("exact", seed, 0.0, factor=factor), memory=0)
            for factor in FACTORS
            for seed in (0, 1)
        ],
    ]
    found = {score.method: score for score in Scores(by_row(rows), [problem]).scores()}
    assert (found["exact"].regret, found["plain"].regret) == (0, math.inf)
    assert (found["exact"].better, found["plain"].worse) == (1, 0)
    assert [line.split()[:3] for line in leaderboard([found["plain"]]).lines()[2:]] == [["plain", "‡", "∞"]]
    no_memory = [[dataclasses.replace(one, memory=0) for one in row] for row in rows]  # it failed in the first half
    assert math.isnan(Scores(by_row(no_memory), [problem]).memory(problem, "exact"))


@pytest.mark.parametrize("steps", [8, 9, 11])
def test_a_run_of_any_length_has_an_error_at_every_checkpoint(steps):
    """The step whose memory is measured is one of the checkpoints of a run of 11 steps: its errors were infinite."""
    found = train(dataclasses.replace(SMALL, steps=steps), "plain", 0, 0.03, 1.0)
    assert [math.isfinite(error) for error in found.errors] == [True] * len(CHECKPOINTS)


def test_the_digest_of_a_source_is_that_of_its_code():
    def code(text):
        return suite_problems._code(ast.parse(text))

    source = "def f(x):\n    return x if x else [None]\n"
    documented = (
        'from __future__ import annotations\n"""Module."""\n'
        'def f(x):  # why\n    """Doc."""\n    return (x if x else [None])\n'
    )
    assert code(source) == code(documented)
    for old, new in (("None", "0"), ("None", "'None'"), ("[None]", "[]"), ("return", "yield"), ("(x)", "(x, /)")):
        assert code(source) != code(source.replace(old, new))


def test_rows_of_another_source_are_marked(small_suite, gradhomog_install, tmp_path, capsys):
    gradhomog_install("nothing", NOTHING)
    command = ["suite", "nothing", "--problem", "small", "--jobs", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "‡" not in capsys.readouterr().out
    stored = read_results(tmp_path)
    for source, marked in (
        (NOTHING + "# a comment\n", []),
        (NOTHING.replace("torch.ones", "2 * torch.ones"), ["nothing ‡"]),
    ):
        gradhomog_install("nothing", source)
        suite_problems._hash_sources.cache_clear()  # as in a new process
        table = problem_table(Scores(stored, [SMALL]), SMALL)
        assert [text for text, *_ in table.texts if "‡" in text] == marked
        assert any("‡: rows of another source" in note for note in table.notes) == bool(marked)


def test_rows_of_a_problem_with_other_settings_are_left_out(tmp_path, monkeypatch):
    append_row(tmp_path, [train(SMALL, "plain", 0, 0.03, 1.0)])
    longer = dataclasses.replace(SMALL, steps=17)
    monkeypatch.setattr(suite_problems, "problems", lambda: {"small": longer})
    assert not read_results(tmp_path)


@pytest.mark.parametrize("problem", problems().values(), ids=lambda problem: problem.name)
def test_the_scaled_task_of_a_problem_exists(problem):
    if problem.name == "movielens":
        pytest.importorskip("recbole")  # `.ci/run` installs it
    config = problem.config
    run = Run(config.learners[0], "none", 0)
    trainable = make_trainable(config.for_run(run), run)
    names = trainable.tasks if config.problem else [domain.name for domain in trainable.source.train.domains]
    assert problem.scaled_task in names
    assert len(problem.rates) == 3
    assert problem.question.endswith(".")


def test_stored_rows_of_a_disabled_method_are_printed(monkeypatch):
    registry = Registry(disabled=["mgda"])
    with using(registry):
        suite_problems._hash_sources.cache_clear()
        (row,) = [
            row
            for row in Scores(row_files.stored_results(), list(problems().values())).scores()
            if row.method == "mgda"
        ]
    suite_problems._hash_sources.cache_clear()
    assert row.outdated == row.problems == len({name for name, _ in row_files.stored_results()})


def test_stored_rows_have_every_seed_and_factor():
    known = problems()
    for (name, method), runs in row_files.stored_results().items():
        cells = row_files.by_factor(runs)
        assert sorted(cells) == sorted(known[name].factors(method)), (name, method)
        assert {tuple(one.seed for one in cell) for cell in cells.values()} == {known[name].seeds}, (name, method)


@pytest.fixture
def small_suite(monkeypatch):
    """The suite with one problem and no stored results."""
    monkeypatch.setattr(suite_problems, "problems", lambda: {"small": SMALL})
    monkeypatch.setattr(execute, "stored_results", dict)


def test_the_command_prints_a_row_among_the_baselines_and_keeps_it(small_suite, gradhomog_install, tmp_path, capsys):
    gradhomog_install("nothing", NOTHING)
    command = ["suite", "nothing", "--problem", "small", "--jobs", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert {line.split()[0] for line in first.splitlines()[2:5]} == {"plain", "static", "nothing"}
    written = (tmp_path / FILE).read_bytes()
    assert json.loads((tmp_path / row_files.ENVIRONMENT).read_text())["versions"]["torch"] == torch.__version__
    assert main([*command, "--json"]) == 0
    assert {row["method"] for row in json.loads(capsys.readouterr().out)["problems"]["small"]} == {
        "plain", "static", "nothing",
    }  # fmt: skip
    assert (tmp_path / FILE).read_bytes() == written
    gradhomog_install("nothing", NOTHING.replace("torch.ones(", "0.5 * torch.ones("))  # its source changes
    suite_problems._hash_sources.cache_clear()  # as in a new process
    assert main(command) == 0
    assert len((tmp_path / FILE).read_bytes()) > len(written)


HALVES = """
    import torch
    from gradhomog import Examples, MultiTaskData, ProblemSpec, hookimpl

    def halves(run):
        points = torch.rand(64, 2, generator=torch.Generator().manual_seed(0)) - 0.5
        split = Examples(points, tuple((points > 0).long().unbind(1)))
        return MultiTaskData(("x", "y"), (2, 2), 16, split, split, split)

    @hookimpl
    def gradhomog_problem():
        return ProblemSpec(
            factory=halves, summary="halves of a square", defaults={"network": {"name": "mlp", "width": 4}},
            suite={"question": "In which half?", "scaled_task": "y", "steps": 8, "rates": [0.01, 0.1]},
        )
"""


@pytest.mark.slow
def test_a_problem_of_a_plugin_has_rows_by_the_same_protocol(gradhomog_install, tmp_path, capsys):
    gradhomog_install("halves", HALVES, kind="problems")
    assert main(["suite", "--problem", "halves"]) == 2
    assert "no rows of halves are stored. Name a method" in capsys.readouterr().err
    assert main(["suite", "mgda", "--problem", "halves", "--jobs", "1", "--out", str(tmp_path)]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[2:5]} == {"plain", "static", "mgda"}
    rows = read_results(tmp_path)
    assert [len(rows["halves", method]) for method in ("plain", "mgda", STATIC)] == [18, 18, 104]
    gradhomog_install("halves", HALVES.replace('"steps"', '"stepz"'), kind="problems")
    suite_problems._problem_of_plugin.cache_clear()  # as in a new process
    assert main(["suite", "mgda", "--problem", "halves"]) == 2
    assert "unknown key `stepz`" in capsys.readouterr().err


def test_the_suite_does_not_import_problems_of_plugins_that_it_does_not_use(gradhomog_install, capsys):
    gradhomog_install("broken", "raise RuntimeError", kind="problems")
    assert main(["suite"]) == 0
    assert "auto" in capsys.readouterr().out
    assert main(["suite", "mgda", "--problem", "broken"]) == 2
    assert "RuntimeError" in capsys.readouterr().err


def test_a_missing_package_is_named_before_anything_is_computed(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    chosen = ["--problem", "functions", "--problem", "helmholtz"]
    assert main(["suite", "pcgrad + uw", *chosen, "--out", str(tmp_path)]) == 2
    assert "pip install 'gradhomog[soap]'" in capsys.readouterr().err
    assert not read_results(tmp_path)
    rows = []
    monkeypatch.setattr(execute, "compute_rows", lambda missing, jobs, finished: rows.extend(missing))
    assert main(["suite", "pcgrad + uw", "--out", str(tmp_path)]) == 0
    named = capsys.readouterr().err
    assert "helmholtz is omitted: `train.outer` 'soap' needs" in named
    absent = {"klein_gordon", "helmholtz"} | ({"movielens"} if importlib.util.find_spec("recbole") is None else set())
    stored = {name for name, _ in row_files.stored_results()}
    assert set(re.findall(r"^(\w+) is omitted: ", named, re.MULTILINE)) == stored & absent
    assert {problem.name for problem, _ in rows} == stored - absent


def test_an_unknown_problem_and_an_invalid_method_are_named(capsys):
    assert main(["suite", "--problem", "functons"]) == 2
    assert "unknown problem 'functons'; known: functions" in capsys.readouterr().err
    assert main(["suite", "mgda", "--problem", "regression"]) == 2
    assert "the problem 'regression' has no settings for the suite" in capsys.readouterr().err
    assert main(["suite", "--problem", "helmholtz", "--quick"]) == 2
    assert "`--quick` has only the problems functions," in capsys.readouterr().err
    assert main(["suite", "pcgard"]) == 2
    assert "Did you mean 'pcgrad'?" in capsys.readouterr().err

"""The commands: output, JSON, exit codes, and messages instead of tracebacks."""

import json
import subprocess
import sys

import pytest

from gradhomog import registry
from gradhomog.cli import list_, main
from tests.experiments.conftest import SMALL

pytestmark = pytest.mark.usefixtures("without_figures")


def overrides(*more):
    return [argument for override in (*SMALL, *more) for argument in ("--set", override)]


def test_list_marks_disabled_plugins(monkeypatch, capsys):
    from gradhomog.registry import Registry, using

    monkeypatch.setenv("GRADHOMOG_DISABLE", "pcgrad")
    with using(Registry()):
        main(["list", "homogenizers"])
        assert "pcgrad (disabled)" in capsys.readouterr().out
        assert main(["show", "pcgrad"]) == 2
        assert "disabled by GRADHOMOG_DISABLE=pcgrad" in capsys.readouterr().err


def test_show_gives_options_with_their_ranges_claims_and_documentation(capsys):
    assert main(["show", "gradnorm"]) == 0
    out = capsys.readouterr().out
    assert "alpha=1.5 (a number ≥ 0)" in out
    assert 'scale="mean" (one of "mean", "paper")' in out
    assert "1711.02257" in out
    assert "stateful" in out
    assert "closed form" in out or "row norms only" in out
    assert main(["show", "isi", "--json"]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    assert "rate=0.3 (a number ≥ 0 and < 1)" in options
    assert "neighbours=none (an integer ≥ 1 or none)" in options
    assert main(["show", "glyphs", "--json"]) == 0
    assert "greek" in json.loads(capsys.readouterr().out)["variants"]


def test_env_prints_versions_and_plugins(capsys):
    assert main(["env", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["versions"]["torchopt"] == "0.7.3"
    assert "gradhomog:pcgrad" in data["plugins"]["homogenizers"]


@pytest.mark.slow
def test_compare_prints_the_table_and_report_reproduces_it(tmp_path, capsys):
    assert main(["compare", *overrides(), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "plain" in out
    assert "static (tuned)" in out
    assert "±" in out
    table = out.split("\n\n" + str(tmp_path))[0]
    assert main(["report", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith(table)
    assert main(["report", str(tmp_path / "out"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in data["rows"]] == ["plain", "pcgrad", "static (tuned)"]


@pytest.mark.slow
def test_train_saves_the_best_network(tmp_path, capsys):
    arguments = overrides("seeds=1", 'homogenizers=["pcgrad"]')
    assert main(["train", *arguments, "--out", str(tmp_path / "out"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["failures"] == {}
    assert len(list((tmp_path / "out" / "runs").glob("*/best.pt"))) == 1


def test_the_resolved_run_file_reproduces_the_table(tmp_path, capsys):
    run = tmp_path / "my.toml"
    run.write_text('learner = "fomaml"\nhomogenizers = ["none"]\nseeds = 1\n', encoding="utf-8")
    more = [a for o in SMALL if not o.startswith(("homog", "seeds")) for a in ("--set", o)]
    more.append("--jobs=1")
    assert main(["compare", str(run), *more, "--out", str(tmp_path / "a"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    again = ["compare", str(tmp_path / "a" / "run.toml"), "--jobs=1"]
    assert main([*again, "--out", str(tmp_path / "b"), "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["rows"][0]["score"] == second["rows"][0]["score"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "pcgard"], "Did you mean 'pcgrad'?"),
        (["compare", "--set", "train.stpes=3"], "Did you mean `train.steps`?"),
        (["compare", "--set", 'homogenizers=["pcgrad +"]'], "expected a name"),
        (["compare", "--set", 'learner="maml(inner_stpes=2)"'], "Did you mean 'inner_steps'?"),
        (["compare", "--set", 'domains.train=["nowhere.npz"]'], "nowhere.npz"),
        (["compare", "--set", "device=meta"], "meta"),
        (["compare", "--set", 'learner="maml(encoder=1)"'], "maml has no option 'encoder'"),
        (["train", "--set", 'homogenizers=["none", "pcgrad"]'], "`homogenizers` must have exactly one entry"),
        (["compare", "--resume"], "has this configuration to resume"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_invalid_input_is_one_message_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    extra = overrides() if arguments[0] in ("compare", "train") else []
    assert main([arguments[0], *extra, *arguments[1:]]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_a_failed_run_is_exit_code_1_with_the_others_in_the_table(gradhomog_install, tmp_path, capsys):
    from tests.experiments.execution.test_comparison import FAULTY

    gradhomog_install("faulty-dist", FAULTY, plugin="faulty")
    arguments = overrides("seeds=1", 'homogenizers=["none", "faulty"]')
    assert main(["compare", *arguments, "--out", str(tmp_path / "out"), "--jobs=1"]) == 1
    printed = capsys.readouterr()
    assert "out of ideas" in printed.err
    assert "plain" in printed.out


def test_a_closed_pipe_is_exit_code_0():
    # A process, because `head` closes the standard output of the program.
    command = f"{sys.executable} -m gradhomog list | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--out", ""], "must be the path of a folder"),
        (["check"], "usage: gradhomog check"),
        (["new", "x", "--kind", "domains"], "homogenizers"),
        (["diagnose", "--batches", "2"], "from 3 to 1000000; got '2'"),
        (["diagnose", "--at", "-1"], "from 0 to 1000000; got '-1'"),
        (["profile", "--seconds", "nan"], "greater than 0; got 'nan'"),
        (["comapre", "something"], "unknown command 'comapre'. Did you mean 'compare'?"),
    ],
)
def test_arguments_that_the_parser_rejects_are_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_kinds_of_plugins_are_those_of_the_registry_which_is_not_imported_at_the_start():
    assert tuple(registry.KINDS) == list_.KINDS
    code = "import sys, gradhomog.cli; assert 'gradhomog.registry' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

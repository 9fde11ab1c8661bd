"""Dry run: all invalid combinations are rejected in one error before any run starts, and no file is written."""

import pytest

from gradhomog import ConfigError
from gradhomog.experiments.execution.comparison import compare, dry_run
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.results import comparison_dir
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from tests.experiments.conftest import SMALL
from tests.experiments.run_helpers import trainer

LANDSCAPE = ["problem.name=landscape", "train.steps=2"]


def methods(*texts):
    return f"homogenizers={list(texts)!r}"


def error_of(overrides, tmp_path):
    """Return the error message of a comparison that must fail before it trains or writes anything."""
    records, out = [], tmp_path / "out"
    with pytest.raises(ConfigError) as caught:
        compare(load(None, overrides), out, progress=records.append)
    assert {record["event"] for record in records} <= {"dry_run"}
    assert not out.exists()
    return str(caught.value)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,c\n" + "".join(f"{i},{i * i},{i % 3}\n" for i in range(30)))
    return [
        "problem.name=regression", f"problem.data={path}", 'problem.targets=["b", "c"]', "network.width=4",
        "train.steps=2", "seeds=1",
    ]  # fmt: skip


def test_all_homogenizers_that_need_a_network_are_rejected_on_the_landscape_in_one_error(tmp_path):
    attached = ["isi", "rotate", "rotograd"]
    others = ["pcgrad + isi", "mgda(on='features')", "graddrop(on='features')", "uw", "none", "pcgrad"]
    message = error_of([*LANDSCAPE, methods(*attached, *others)], tmp_path)
    assert message.count("acts within a network, which the problem `landscape` does not offer") == len(attached)
    assert message.count("reads features of a network, which the problem `landscape` does not offer") == 2
    assert "in `update`: losses must not be negative" in message
    lines = [line.strip() for line in message.splitlines()]
    assert {"isi, pcgrad + isi", "rotate", "rotograd", "uw"} <= set(lines)
    assert not {"none", "pcgrad"} & set(lines)
    assert "nothing was started" in lines[0]
    assert "remove these from `homogenizers`, or choose another `problem.name`" in lines[-1]


def test_homogenizers_that_need_convolutions_or_feature_rows_are_rejected_on_a_table(table, tmp_path):
    message = error_of([*table, methods("isi | pcgrad", "graddrop(on='features')", "rotograd")], tmp_path)
    assert "`layers` counts convolutions, but the encoder has none" in message
    assert "`on` must be 'parameters'" in message
    assert "\n  rotograd" not in message


def test_the_dry_run_error_names_every_learner(tmp_path):
    overrides = [*SMALL, 'learner=["maml", "reptile"]', methods("isi", "static(weights=[1, 2])", "pcgrad")]
    message = error_of(overrides, tmp_path)
    assert "maml with isi, reptile with isi" in message  # the common reason is printed once
    assert "maml with static(weights=[1, 2]), reptile with static(weights=[1, 2])" in message
    assert "got 2 for 3 tasks" in message
    assert "pcgrad" not in message


def test_an_error_of_all_methods_is_reported_once(tmp_path):
    overrides = [*SMALL, "train.inner_lr=1e30", methods("none", "pcgrad", "mgda")]
    message = error_of(overrides, tmp_path)
    assert "  none, pcgrad, mgda\n" in message
    assert message.count("not finite") == 1


@pytest.mark.slow
def test_a_resumed_comparison_has_no_dry_run(small, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    comparison_dir.create_folder(small, out)
    dry_runs = []
    monkeypatch.setattr("gradhomog.experiments.report.page._save_figures", lambda *args: {})
    monkeypatch.setattr("gradhomog.experiments.execution.comparison.dry_run", lambda *args: dry_runs.append(args))
    compare(small, out, resume=True)
    assert not dry_runs
    with pytest.raises(ConfigError, match="already contains results"):
        compare(small, out)
    assert not dry_runs  # the folder is rejected before the dry run


@pytest.mark.slow
def test_a_dry_run_does_not_change_later_runs(small, tmp_path):
    records = []
    for folder_name in ("before", "after"):
        events = []
        trainer(small, Run("maml", "pcgrad", 0), tmp_path / folder_name, events).train_and_test()
        varying = ("seconds", "time")
        records.append([{k: v for k, v in record.items() if not k.endswith(varying)} for record in events])
        dry_run(small, make_methods(small))
    assert records[0] == records[1]

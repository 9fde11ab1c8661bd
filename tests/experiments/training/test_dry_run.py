"""What cannot work with a problem or a learner is refused before any run starts, all at once, with no file left."""

from __future__ import annotations

from contextlib import suppress

import pytest

from gradhomog import ConfigError
from gradhomog.experiments.config.schema import load
from gradhomog.experiments.execution import plan
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.results import comparison_dir
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.training.dry_run import dry_run
from tests.experiments.conftest import SMALL
from tests.experiments.running import trainer

LANDSCAPE = ["problem.name=landscape", "train.steps=2"]


def methods(*texts):
    return f"homogenizers={list(texts)!r}"


def refused(overrides, tmp_path):
    """The message of a comparison's refusal, which trained nothing and wrote nothing."""
    seen, out = [], tmp_path / "out"
    with pytest.raises(ConfigError) as caught:
        compare(load(None, overrides), out, progress=seen.append)
    assert {record["event"] for record in seen} <= {"dry_run"}
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


def test_all_that_need_a_network_are_refused_on_the_landscape_in_one_error(tmp_path):
    within = ["isi", "rotate", "rotograd"]
    others = ["pcgrad + isi", "mgda(on='features')", "graddrop(on='features')", "uw", "none", "pcgrad"]
    message = refused([*LANDSCAPE, methods(*within, *others)], tmp_path)
    assert message.count("needs a network to act within, and the landscape has none") == len(within)
    assert message.count("needs features of a network, and the landscape has none") == 2
    assert "uw: losses must not be negative" in message
    lines = [line.strip() for line in message.splitlines()]
    assert {"isi, pcgrad + isi", "rotate", "rotograd", "uw"} <= set(lines)
    assert not {"none", "pcgrad"} & set(lines)
    assert "nothing was started" in lines[0]
    assert "leave them out of `homogenizers`, or choose another `problem.name`" in lines[-1]


def test_what_finds_no_convolution_or_no_rows_of_features_is_refused_on_a_table(table, tmp_path):
    message = refused([*table, methods("isi | pcgrad", "graddrop(on='features')", "rotograd")], tmp_path)
    assert "isi: `layers` counts convolutions, but the encoder has none" in message
    assert "graddrop: `on` must be 'parameters'" in message
    assert "\n  rotograd" not in message


def test_a_learner_is_tried_by_the_same_step_with_every_learner_named(tmp_path):
    overrides = [*SMALL, 'learner=["maml", "reptile"]', methods("isi", "static(weights=[1, 2])", "pcgrad")]
    message = refused(overrides, tmp_path)
    assert "maml with isi, reptile with isi" in message  # one reason, told once
    assert "maml with static(weights=[1, 2]), reptile with static(weights=[1, 2])" in message
    assert "got 2 for 3 tasks" in message
    assert "pcgrad" not in message


def test_what_fails_whatever_the_method_is_told_once(tmp_path):
    overrides = [*SMALL, "train.inner_lr=1e30", methods("none", "pcgrad", "mgda")]
    message = refused(overrides, tmp_path)
    assert "  none, pcgrad, mgda\n" in message
    assert message.count("not finite") == 1


@pytest.mark.slow
def test_a_comparison_that_has_begun_is_not_tried_again(small, tmp_path, monkeypatch):
    out = comparison_dir.prepare(small, tmp_path / "out")
    tried = []
    monkeypatch.setattr("gradhomog.experiments.report.page._pictures", lambda *given: {})
    monkeypatch.setattr("gradhomog.experiments.execution.comparison.dry_run", lambda *given: tried.append(given))
    compare(small, out, resume=True)
    assert not tried
    with pytest.raises(ConfigError, match="already holds results"):
        compare(small, out)
    assert not tried  # a folder that is refused is refused first


@pytest.mark.slow
def test_a_trial_leaves_every_run_as_it_would_have_been(small, tmp_path):
    records = []
    for folder_name in ("before", "after"):
        kept = []
        trainer(small, Run("maml", "pcgrad", 0), tmp_path / folder_name, kept).finish()
        varying = ("seconds", "time")
        records.append([{k: v for k, v in record.items() if not k.endswith(varying)} for record in kept])
        dry_run(small, plan.methods(small))
    assert records[0] == records[1]


def test_progress_is_told_of_every_step_that_is_tried(small):
    seen, rows = [], plan.methods(small)
    with suppress(ConfigError):
        dry_run(small, rows, seen.append)
    assert [record["event"] for record in seen] == ["dry_run"] * sum(len(row.candidates) for row in rows)
    assert {record["of"] for record in seen} == {len(seen)}

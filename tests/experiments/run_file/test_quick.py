"""`--quick`: a tenth of the training, one seed, a separate folder, and a warning in the output."""

import pytest

from gradhomog.cli import main
from gradhomog.experiments import records
from gradhomog.experiments.run_file.schema import load, shorten
from tests.experiments.conftest import SMALL


def test_quick_has_the_first_seed_and_a_tenth_of_steps_and_tasks():
    config = shorten(load(None, ["seeds=[7, 8]", "train.steps=200", "train.validate_every=50", "test.episodes=300"]))
    assert config.seed_list == [7]
    assert (config.train.steps, config.train.validate_every, config.test.episodes) == (20, 20, 30)


@pytest.mark.parametrize("steps", [1, 2, 3, 19])
def test_quick_keeps_minimum_steps_and_tasks(steps):
    config = shorten(load(None, [f"train.steps={steps}", "test.episodes=2", "train.validation_episodes=1"]))
    assert (config.train.steps, config.test.episodes) == (2, 2)


@pytest.mark.usefixtures("without_figures")
def test_the_command_warns_not_to_compare_methods(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = [word for text in SMALL for word in ("--set", text)]
    assert main(["compare", "--quick", "--jobs", "1", *arguments]) == 0
    assert "Do not compare methods by these numbers." in capsys.readouterr().out
    found = records(tmp_path / "runs" / "compare-quick")
    assert {record["steps"] for record in found if record["event"] == "result"} == {2}

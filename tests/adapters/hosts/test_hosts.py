"""Run the tests of each framework in a process: its imports, defaults and warnings are not those of the other tests.

`python -m pytest tests/adapters/hosts/test_lightning.py` runs the tests of one file, as any other.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
STEP, LOSS = "test_one_step_follows_the_direction_of_the", "test_a_loss_that_is_not_finite"
QUICK = {
    "transformers": [f"{STEP}_tasks_gradients"],
    "accelerate": ["test_accelerate_saves_and_loads_the_state_of_a_pipeline"],
    "sentence_transformers": ["test_without_homogenizers_training_is_that_of_sentence_transformers[sgd]"],
    "trl": ["test_a_reward_that_does_not_differ_is_absent"],
    "peft": ["test_the_rows_of_one_adapter_are_those_by_hand"],
    "lightning": ["test_a_step_follows_the_direction_of_the_losses_gradients"],
    "pina": [f"{STEP}_weighted_losses_gradients", f"{LOSS}_is_an_error"],
    "deepxde": [f"{STEP}_weighted_losses_gradients", f"{LOSS}_is_named_and_deepxdes_data_are_restored"],
    "torch_rechub": ["test_a_step_is_that_of_a_custom_loop", f"{LOSS}_raises_with_its_name"],
}
"""One or two tests of each framework."""
TOGETHER = [
    ("transformers", "accelerate", "sentence_transformers"), ("trl", "peft"), ("lightning", "pina"),
    ("deepxde", "torch_rechub"),
]  # fmt: skip
"""Frameworks that share a process, because they import each other or little."""
ON_RANKS = [("transformers_on_ranks",), ("lightning_on_ranks",)]


def run_tests(hosts: tuple[str, ...], quick: bool) -> None:
    missing, found = [], []
    for host in hosts:
        file = str(FOLDER / f"test_{host}.py")
        if importlib.util.find_spec(host.removesuffix("_on_ranks")):
            found += [f"{file}::{name}" for name in QUICK[host]] if quick else [file]
        else:
            missing.append(host)
    if found:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *found]
        process = subprocess.run(command, cwd=FOLDER.parents[2], text=True, capture_output=True, check=False)
        assert process.returncode == 0, process.stdout + process.stderr
    if missing:
        pytest.skip(f"requires {', '.join(missing)}, see the extras")


@pytest.mark.parametrize("hosts", TOGETHER, ids=str)
def test_representative_tests_of_the_hosts_pass(hosts: tuple[str, ...]) -> None:
    run_tests(hosts, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [*TOGETHER, *ON_RANKS], ids=str)
def test_all_tests_of_the_hosts_pass(hosts: tuple[str, ...]) -> None:
    run_tests(hosts, quick=False)


def test_every_file_is_run() -> None:
    files = {path.stem.removeprefix("test_") for path in FOLDER.glob("test_*.py")} - {"hosts"}
    assert files == {host for hosts in (*TOGETHER, *ON_RANKS) for host in hosts}

"""The overhead of homogenizers in a step: equal initial parameters, one table per learner."""

import pytest
import torch

from gradhomog.experiments.profiling import overhead
from gradhomog.experiments.run_file.schema import load
from tests.experiments.conftest import SMALL


@pytest.fixture
def small():
    return load(None, [*SMALL, "seeds=1"])


def test_pipelines_are_plain_twice_then_the_first_candidate_of_each_method(small):
    assert overhead.pipelines(small, "maml") == {
        "plain": "none", "plain again": "none", "pcgrad": "pcgrad", "static": "static",
    }  # fmt: skip
    without = load(None, [*SMALL, 'homogenizers=["pcgrad", "pcgrad | static"]'])
    assert list(overhead.pipelines(without, "maml")) == ["plain", "plain again", "pcgrad"]


def test_learners_have_equal_initial_parameters_and_share_no_memory(small):
    made = overhead.make_steppers(small, "maml")
    parameters = {label: stepper.trainable.parameters() for label, stepper in made.items()}
    start = [parameter.detach().clone() for parameter in parameters["plain"]]
    for label, own in parameters.items():
        assert all(map(torch.equal, own, start)), label
    storages = [parameter.data_ptr() for own in parameters.values() for parameter in own]
    assert len(set(storages)) == len(storages)
    made["pcgrad"](0)
    for label, own in parameters.items():
        assert all(map(torch.equal, own, start)) == (label != "pcgrad")


def test_a_problem_has_a_table_without_separate_networks_per_task():
    problem = load(None, ["problem.name=shared_unit", 'homogenizers=["moco"]', "train.steps=4"])
    (found,) = overhead.step_overheads(problem, problem.learners, rounds=3, seconds=1e-9)
    assert found.title == "one training step of shared_unit"
    assert found.rows[-1].label == "moco"
    assert found.rows[-1].state_bytes

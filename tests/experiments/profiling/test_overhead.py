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


@pytest.mark.slow
def test_a_step_table_has_every_method_with_rounds_and_memory(small):
    ticks = iter(range(10**6))
    (found,) = overhead.step_overheads(small, small.learners, rounds=4, seconds=1e9, clock=lambda: float(next(ticks)))
    assert [row.label for row in found.rows] == ["plain", "plain again", "pcgrad", "static"]
    for row in found.rows:
        assert row.seconds.n == row.ratio.n == 4
        assert row.ratio.median == 1.0  # the clock ticks once per reading
        assert row.peak_bytes
    assert found.added_bytes(found.rows[1]) == 0
    assert "maml" in found.title
    assert found.failures == {}


def test_every_learner_has_a_table(small):
    both = load(None, [*SMALL, 'learner=["maml", "fomaml"]', 'homogenizers=["none"]'])
    found = overhead.step_overheads(both, both.learners, rounds=3, seconds=1e-9)
    assert [one.title for one in found] == ["one training step of maml", "one training step of fomaml"]
    assert all(row.seconds.n == 3 for one in found for row in one.rows)


def test_a_homogenizer_that_fails_in_a_step_is_reported(gradhomog_install):
    from tests.experiments.execution.test_comparison import FAULTY

    gradhomog_install("faulty-dist", FAULTY, plugin="faulty")
    faulty = load(None, [*SMALL, 'homogenizers=["faulty"]'])
    (found,) = overhead.step_overheads(faulty, ["maml"], rounds=6, seconds=1e9)
    assert "out of ideas" in found.failures["faulty"]
    assert [row.label for row in found.rows] == ["plain", "plain again"]

"""Meta-steps whose tasks are distributed over ranks are those of one process."""

import pytest
import torch

from tests.ranks import cases

pytestmark = pytest.mark.slow_after_first


@pytest.mark.parametrize("text", ["upgrad", "none", "rotate + reweight", "gradnorm"])
@pytest.mark.parametrize("counts", [[1, 3], [2, 1, 1]])
def test_three_meta_steps_are_those_of_one_process(processes, text, counts):
    (expected,) = processes(cases.learner_steps, 1, "maml", text, [sum(counts)])
    found = processes(cases.learner_steps, len(counts), "maml", text, counts)
    for one in found:
        torch.testing.assert_close(one["parameters"], expected["parameters"], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(one["losses"], expected["losses"])
        assert one["domains"] == expected["domains"]
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0]["parameters"], other["parameters"], strict=True))


def test_local_meta_steps_keep_replicas_equal(processes):
    first, second = processes(cases.learner_steps, 2, "fomaml", "pcgrad", [2, 2], True)
    assert all(torch.equal(a, b) for a, b in zip(first["parameters"], second["parameters"], strict=True))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_parameter_is_unused_if_no_task_of_any_rank_uses_it(processes, engine, local):
    found = processes(cases.learner_gradients_of_unused_layers, 2, engine, local)
    assert found == [{"partly": True, "never": False, "head": False}] * 2

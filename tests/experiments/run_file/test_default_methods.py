"""The default comparison and the methods of a comparison whose run file lists none."""

import pytest
import torch

import gradhomog
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.run_file.schema import FEW_SHOT, MULTI_TASK, load
from gradhomog.experiments.runs import SINGLE, Run
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog.registry import expression

TEXTS = {*load().homogenizers, *FEW_SHOT, *MULTI_TASK} - {SINGLE}


@pytest.mark.parametrize("text", sorted(TEXTS))
def test_every_default_method_makes_a_pipeline(text):
    for alternative in expression.parse_alternatives(text):
        gradhomog.pipeline(expression.render(alternative))


def test_a_problem_whose_plugin_lists_no_methods_has_those_of_multi_task_problems():
    config = load(None, ["problem.name=glyph_pairs"])
    assert config.homogenizers == list(MULTI_TASK)
    assert len(make_methods(config)) == len(MULTI_TASK)
    assert load(None, ["problem.name=landscape"]).homogenizers[0] == "none"


def test_changing_a_configuration_does_not_change_the_defaults():
    changed = load()
    changed.domains.train.clear()
    changed.homogenizers.clear()
    assert len(load().domains.train) == len(load().domains.test) == 4
    assert load().homogenizers


def test_every_method_takes_a_step_from_the_same_initial_parameters():
    config = load()
    losses = []
    for row in make_methods(config):
        for text in row.candidates:
            trainee = MetaLearning(config, Run("maml", text, 0))
            before = [parameter.detach().clone() for parameter in trainee.parameters()]
            report = trainee.step(0, torch.optim.SGD(trainee.parameters(), lr=1e-3), inspect=True)
            assert any(not torch.equal(a, b) for a, b in zip(before, trainee.parameters(), strict=True)), text
            losses.append(report.losses)
    assert all(torch.equal(losses[0], found) for found in losses)

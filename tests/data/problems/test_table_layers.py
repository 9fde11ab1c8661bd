"""SharedBottom, MMoE and PLE on tables: the equations, the shared parameters, batch normalization, resumption."""

import copy

import pytest
import torch

from gradhomog import ConfigError
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import make_optimizer, make_trainable
from gradhomog_data.problems._table_layers import table_layers
from tests.data.problems.conftest import needs_recbole

ARCHITECTURES = ["shared_bottom", "mmoe", "ple"]


def made(architecture, homogenizers="none", name="yeast"):
    overrides = [f"problem.name={name}", "network.width=4", "train.outer_lr=0.01"]
    config = load(None, overrides + ([f"problem.architecture={architecture}"] if architecture else []))
    problem = make_trainable(config, Run(name, homogenizers, 0))
    return problem, make_optimizer(config, problem)


def layer(part, x):
    """A linear layer, batch normalization with running statistics of 0 and 1, and the activation of torch-rechub."""
    linear = part.mlp[0]
    return (x @ linear.weight.T + linear.bias) / (1 + part.mlp[1].eps) ** 0.5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_outputs_are_those_of_the_equations_of_the_papers(architecture):
    torch.manual_seed(0)
    layers = table_layers(architecture, 5, 3, 4).eval()
    model, x = layers.model, torch.randn(7, 5)
    columns = []
    for task in range(3):
        if architecture == "shared_bottom":
            experts, gate = [model.bottom_mlp], None
        elif architecture == "mmoe":
            experts, gate = [*model.experts], model.gates[task]
        else:
            (cgc,) = model.cgc_layers
            experts, gate = (
                [*cgc.experts_specific[2 * task : 2 * task + 2], *cgc.experts_shared],
                cgc.gates_specific[task],
            )
        values = torch.stack([layer(expert, x).relu() for expert in experts], 1)
        weights = torch.ones(7, 1) if gate is None else layer(gate, x).softmax(1)
        mixed = (weights[:, :, None] * values).sum(1)
        last = model.towers[task].mlp[-1]
        columns.append(layer(model.towers[task], mixed).relu() @ last.weight.T + last.bias)
    assert len(experts) == {"shared_bottom": 1, "mmoe": 8, "ple": 3}[architecture]
    torch.testing.assert_close(layers(x), torch.cat(columns, 1))
    torch.testing.assert_close(layers.train()(x), model({"inputs": x}))  # torch-rechub's own forward


@pytest.mark.parametrize("architecture", [None, *ARCHITECTURES])
def test_shared_are_the_parameters_of_several_losses_and_others_get_the_gradient_of_their_loss(architecture):
    problem, optimizer = made(architecture)
    losses = problem.losses(0).values()
    parameters = dict(problem.network.named_parameters())
    gradients = {}
    for loss in losses:
        found = torch.autograd.grad(loss, [*parameters.values()], retain_graph=True, allow_unused=True)
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                gradients.setdefault(name, []).append(gradient)
    several = {name for name, rows in gradients.items() if len(rows) > 1}
    assert several == problem.shared_part.keys()
    before = copy.deepcopy(problem.network.state_dict())
    assert problem.rows(0).rows.keys() == problem.shared_part.keys()
    assert all(torch.equal(value, before[name]) for name, value in problem.network.state_dict().items())
    problem.network.load_state_dict(before)
    problem.step(0, optimizer, inspect=False)
    for name, parameter in parameters.items():
        expected = sum(gradients[name]) / (len(losses) if name in problem.shared_part else 1)
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("yeast", "mmoe"), *(pytest.param("movielens", kind, marks=needs_recbole) for kind in ("shared_bottom", "ple"))],
)
def test_training_learns_and_a_resumed_run_is_the_uninterrupted_one(name, architecture):
    whole, optimizer = made(architecture, "upgrad", name)
    before = whole.validate().mean
    for index in range(8):
        if index == 4:
            middle = copy.deepcopy((whole.state_dict(), optimizer.state_dict()))
        whole.step(index, optimizer, inspect=False)
    assert whole.validate().mean < before
    resumed, other = made(architecture, "upgrad", name)
    resumed.load_state_dict(middle[0])
    other.load_state_dict(middle[1])
    for index in range(4, 8):
        resumed.step(index, other, inspect=False)
    found = resumed.network.state_dict()
    assert all(torch.equal(value, found[key]) for key, value in whole.network.state_dict().items())
    assert whole.test([]) == resumed.test([])


def test_a_run_file_without_architecture_has_no_such_key_so_that_its_digest_is_that_of_before():
    config = load(None, ["problem.name=yeast"])
    assert config.problem == {"name": "yeast", "seed": 0}
    assert load(None, ["problem.name=yeast", "problem.architecture=ple"]).digest != config.digest
    with pytest.raises(ConfigError, match=r'`problem.architecture` must be one of "shared_bottom", "mmoe", "ple" or'):
        load(None, ["problem.name=yeast", "problem.architecture=moe"])

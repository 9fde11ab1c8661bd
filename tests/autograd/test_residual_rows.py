"""`residual_rows`: the rows of a loop over points, by vectorized derivatives."""

import pytest
import torch
from torch import nn
from torch.func import hessian, jacrev

import gradhomog
from gradhomog import OptionError

POINTS = torch.linspace(-1, 1, 14, dtype=torch.float64).view(7, 2)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def by_loop(residual, points, model):
    """Return losses and rows by one backward pass per residual of each point."""
    parameters = dict(model.named_parameters())
    losses, rows = [], []
    for point in points:
        for value in residual(point).reshape(-1):
            loss = value.square() / (2 * len(points))
            losses.append(loss.detach())
            rows.append(torch.autograd.grad(loss, [*parameters.values()], retain_graph=True, materialize_grads=True))
    return torch.stack(losses), dict(zip(parameters, map(torch.stack, zip(*rows, strict=True)), strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch 2.13's own forward mode
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_rows_are_those_of_a_backward_pass_per_residual(chunk_size):
    model = network()

    def equation(x):
        return hessian(lambda z: model(z)[0])(x).trace() + torch.sin(x.sum())

    def condition(x):  # value and derivative: two residuals of a point
        return torch.cat([model(x) - x[:1], jacrev(model)(x)[0, :1]])

    before = {name: value.clone() for name, value in model.state_dict().items()}
    terms = [(equation, POINTS), (condition, POINTS[:3]), (model, POINTS[3:5])]
    losses, rows = gradhomog.residual_rows(terms, model, chunk_size=chunk_size)
    each = [by_loop(residual, points, model) for residual, points in terms]
    torch.testing.assert_close(losses, torch.cat([found for found, _ in each]))
    for name, block in rows.materialize().items():
        torch.testing.assert_close(block, torch.cat([found[name] for _, found in each]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
    assert not losses.requires_grad


def test_frozen_parameters_have_no_rows():
    model = network()
    model[0].requires_grad_(False)
    _, rows = gradhomog.residual_rows([(model, POINTS)], model)
    assert rows.names == ("2.weight", "2.bias")


def test_a_layer_or_a_weight_that_is_used_twice_has_one_row():
    layer, other = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
    other.weight = layer.weight
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), other)
    _, rows = gradhomog.residual_rows([(model, POINTS)], model)
    half = model(POINTS).square().mean(0).sum() / 2
    expected = dict(zip(rows.names, torch.autograd.grad(half, [*model.parameters()]), strict=True))
    for name, block in rows.materialize().items():
        torch.testing.assert_close(block.sum(0), expected[name])


def test_the_losses_are_means_over_points_of_sums_over_the_residuals_of_a_point():
    net, points = nn.Linear(2, 3).double(), torch.randn(5, 2, dtype=torch.float64)
    losses, _ = gradhomog.residual_rows([(net, points)], net)
    torch.testing.assert_close(losses.sum(), net(points).square().sum(1).mean().detach() / 2)


@pytest.mark.parametrize(("count", "terms"), [(0, 1), (5, 0)])
def test_a_term_without_points_and_no_terms_raise(count, terms):
    net = nn.Linear(2, 1)
    with pytest.raises(OptionError, match=r"requires .* at least one point; got 2 parameters"):
        gradhomog.residual_rows([(net, torch.ones(count, 2))] * terms, net)
    with pytest.raises(OptionError, match="got 0 parameters"):
        gradhomog.residual_rows([(net.requires_grad_(False), torch.ones(3, 2))], net)

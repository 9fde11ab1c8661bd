"""RelationNetLRP: a row written by hand with constant weights, the class scores, and the cases equal to RelationNet."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gradhomog_adapters._relevance import relevance_of_inputs
from gradhomog_adapters.relationnet import RelationNet
from gradhomog_adapters.relationnet_lrp import RelationNetLRP, class_scores
from tests.adapters import checks
from tests.adapters.checks import relation_learner


def tasks(maps=False, **options):
    return checks.tasks(shape=(1, 6, 6) if maps else (3,), **options)


def vector_relevance(relation, pair, value):
    """The relevance of one pair for a module of two linear layers with a ReLU, by the textbook's loops."""
    first, last = relation[0], relation[2]
    hidden = torch.relu(first(pair))

    def propagate(inputs, weight, outputs):
        found = torch.zeros_like(inputs)
        for j, row in enumerate(weight):
            z = sum(row[i] * inputs[i] for i in range(len(inputs)))
            for i in range(len(inputs)):
                found[i] += row[i] * inputs[i] / (z + (0.01 if z >= 0 else -0.01)) * outputs[j]
        return found

    with torch.no_grad():
        return propagate(pair, first.weight, propagate(hidden, last.weight, value))


def test_rows_are_those_of_weighted_pairs_with_constant_weights():
    learner = relation_learner(RelationNetLRP)
    relation, encoder = learner.extra_modules["relation"], learner.encoder

    def loss(task):
        pairs = checks.reference_pairs(encoder, task)
        scores = relation(pairs).reshape(-1, checks.WAYS)
        p = scores.detach().softmax(1).flatten()
        weights = []
        for pair, share in zip(pairs.detach(), p, strict=True):
            value = math.log(2 * (float(share) + 0.01) / (1.01 - float(share)))
            relevance = vector_relevance(relation, pair, torch.tensor([value], dtype=torch.float64))
            weights.append(1 + relevance / relevance.abs().max())
        weighted = relation(pairs * torch.stack(weights)).reshape(-1, checks.WAYS)
        labels = nn.functional.one_hot(task.query_y, checks.WAYS).double()
        return sum(nn.functional.mse_loss(torch.sigmoid(found), labels) for found in (scores, weighted))

    checks.assert_rows_match_autograd(learner, tasks(), loss)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("objective", ["mse", "softmax"])
def test_rows_are_those_of_the_sum_of_both_losses_for_the_same_weights(maps, objective):
    # The weights are taken from the learner: this tests batch normalization, masks and both objectives.
    learner = relation_learner(RelationNetLRP, maps, objective=objective, guidance=0.3, engine="loop")
    plain = relation_learner(RelationNet, maps, objective=objective)
    weights = []
    compute = learner.weights
    learner.weights = lambda *arguments: weights.append(compute(*arguments)) or weights[-1]
    batch = tasks(maps)
    learner.rows(batch)
    relation, left = learner.extra_modules["relation"], iter(weights)

    def loss(task):
        pairs = checks.reference_pairs(learner.encoder, task)
        found = [relation(x).reshape(-1, checks.WAYS) for x in (pairs, pairs * next(left).reshape(pairs.shape))]
        losses = [learner.loss(x if objective == "softmax" else x.sigmoid(), task.query_y) for x in found]
        return losses[0] + 0.3 * losses[1]

    learner.weights = compute
    assert len(weights) == len(batch)
    assert all(float(w.min()) >= 0 and float(w.max()) <= 2 and float(w.std()) > 0.1 for w in weights)
    checks.assert_rows_match_autograd(learner, batch, loss)
    task = batch[0]
    arguments = task.support_x, task.support_y, task.query_x
    assert torch.equal(learner.predict(*arguments), plain.predict(*arguments))


@pytest.mark.parametrize(("shots", "expected"), [(1, 0.5), (2, 1.0), (5, 1.0)])
def test_the_default_guidance_depends_on_the_shots(shots, expected):
    batch = tasks(shots=shots)
    default, explicit = relation_learner(RelationNetLRP), relation_learner(RelationNetLRP, guidance=expected)
    checks.assert_rows_equal(default.rows(batch), explicit.rows(batch), rtol=0, atol=0)


@pytest.mark.parametrize("maps", [False, True])
def test_without_guidance_it_is_relationnet(maps):
    found, expected = relation_learner(RelationNetLRP, maps, guidance=0.0), relation_learner(RelationNet, maps)
    checks.assert_rows_equal(found.rows(tasks(maps)), expected.rows(tasks(maps)), rtol=0, atol=0)


def test_class_scores_are_log_odds_relative_to_chance():
    # p = (0.7, 0.2, 0.1): β = 2, ε = 0.01.
    scores = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log() + 3
    expected = [[math.log(2 * (p + 0.01) / (1 - p + 0.01)) for p in (0.7, 0.2, 0.1)]]
    found = class_scores(scores, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_absent_classes_have_no_share():
    present = torch.tensor([True, False, True])
    found = class_scores(torch.zeros(1, 3, dtype=torch.float64), present)
    torch.testing.assert_close(found[0, [0, 2]], torch.zeros(2, dtype=torch.float64))  # p = 1/2, β = 1
    assert float(found[0, 1]) == pytest.approx(math.log(0.01 / 1.01))


# -- layer-wise relevance propagation: a loop over contributions, and layers that only pass relevance on ---------------

DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5)]


def layers(*modules):
    return [(module, dict(module.named_parameters())) for module in modules]


@pytest.mark.parametrize(("dtype", "rounding"), DTYPES)
def test_a_convolution_shares_relevance_by_positive_contributions(dtype, rounding):
    # The oracle is a loop over outputs and inputs of the convolution written as a matrix.
    torch.manual_seed(0)
    module = nn.Conv2d(2, 3, 3, padding=1, stride=2).to(dtype)
    x, relevance = torch.randn(1, 2, 4, 4).to(dtype), torch.randn(1, 3, 2, 2).to(dtype)
    basis = torch.eye(32, dtype=dtype).reshape(32, 2, 4, 4)
    matrix = (module(basis) - module(torch.zeros_like(basis))).flatten(1).detach().T  # [outputs, inputs]
    expected = torch.zeros(32, dtype=dtype)
    for row, value in zip(matrix, relevance.flatten(), strict=True):
        contributions = (row * x.flatten()).clamp(min=0)
        expected += contributions / contributions.sum() * value
    found = relevance_of_inputs(layers(module), x, relevance)
    torch.testing.assert_close(found.flatten(), expected, rtol=10 * rounding, atol=10 * rounding)
    torch.testing.assert_close(found.sum(), relevance.sum(), rtol=10 * rounding, atol=10 * rounding)


def test_an_output_without_positive_contributions_loses_its_relevance():
    module = nn.Conv2d(1, 1, 1).double()
    module.weight.data.fill_(-1)
    ones = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    assert torch.equal(relevance_of_inputs(layers(module), ones, ones), torch.zeros_like(ones))


def test_pooling_gives_all_relevance_to_the_maximum_and_other_layers_do_not_change_it():
    x = torch.tensor([[[[1.0, 5.0], [2.0, 3.0]]]], dtype=torch.float64)
    relevance = torch.tensor([[7.0]], dtype=torch.float64)
    found = relevance_of_inputs(layers(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), x, relevance)
    assert torch.equal(found, torch.tensor([[[[0.0, 7.0], [0.0, 0.0]]]], dtype=torch.float64))

"""Layer-wise relevance propagation: a loop over contributions, and layers that only pass relevance on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradhomog_adapters._relevance import relevance_of_inputs

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

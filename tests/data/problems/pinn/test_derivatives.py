"""Propagated derivatives equal nested automatic differentiation, and so do their gradients w.r.t. the parameters."""

import itertools

import pytest
import torch

from gradhomog_data.problems.pinn.equation import TanhNetwork, value_and_derivatives


def make_layers(sizes, dtype):
    random = torch.Generator().manual_seed(0)
    shapes = [(outputs, inputs) for inputs, outputs in itertools.pairwise(sizes)]
    weights = [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]
    biases = [torch.randn(shape[0], generator=random, dtype=dtype).requires_grad_() for shape in shapes]
    return weights, biases


def nested(inputs, weights, biases, first_order, second_order):
    """The value by plain operations, first and second derivatives by automatic differentiation of it."""
    inputs = inputs.clone().requires_grad_()
    value = inputs
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        value = torch.tanh(value @ weight.T + bias)
    value = (value @ weights[-1].T + biases[-1])[:, 0]
    (first,) = torch.autograd.grad(value.sum(), inputs, create_graph=True)
    second = [torch.autograd.grad(first[:, i].sum(), inputs, create_graph=True)[0][:, i] for i in range(second_order)]
    return torch.stack([value, *first.T[:first_order], *second])


CASES = [(first_order, second_order) for first_order in range(3) for second_order in range(first_order + 1)]


@pytest.mark.parametrize("sizes", [(2, 6, 1), (2, 7, 5, 1), (2, 4, 4, 4, 4, 1)])
@pytest.mark.parametrize(("first_order", "second_order"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-4)])
def test_values_and_gradients_are_those_of_nested_differentiation(sizes, first_order, second_order, dtype, tolerance):
    weights, biases = make_layers(sizes, dtype)
    inputs = torch.randn(9, 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    actual = value_and_derivatives(inputs, weights, biases, first_order, second_order)
    expected = nested(inputs, weights, biases, first_order, second_order)
    assert actual.shape == (1 + first_order + second_order, 9)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    factors = torch.randn(actual.shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
    gradients = [
        torch.autograd.grad((result.square() * factors).sum(), [*weights, *biases]) for result in (actual, expected)
    ]
    scale = max(float(gradient.abs().max()) for gradient in gradients[1])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)


def test_a_second_differentiation_of_the_gradient_raises():
    weights, biases = make_layers((2, 3, 1), torch.float64)
    value = value_and_derivatives(torch.ones(4, 2, dtype=torch.float64), weights, biases, 1)
    (gradient,) = torch.autograd.grad(value.square().sum(), weights[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("standardize", [True, False])
def test_derivatives_of_the_network_are_w_r_t_the_coordinates_of_the_box(standardize):
    network = TanhNetwork(
        (-1, 2), (3, 8), 5, 2, standardize=standardize, generator=torch.Generator().manual_seed(0)
    ).double()
    points = torch.tensor([[-0.5, 3.0], [2.0, 7.5]], dtype=torch.float64)
    u, u_x, u_y, u_xx, u_yy = network(points, first_order=2, second_order=2)
    step = 1e-4
    for axis, first, second in ((0, u_x, u_xx), (1, u_y, u_yy)):
        shift = torch.zeros(2, dtype=torch.float64)
        shift[axis] = step
        above, below = network(points + shift)[0], network(points - shift)[0]
        torch.testing.assert_close(first, (above - below) / (2 * step), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(second, (above - 2 * u + below) / step**2, rtol=1e-5, atol=1e-6)


def test_standardized_points_of_the_box_have_mean_0_and_standard_deviation_1():
    network = TanhNetwork((-1, 2), (3, 8), 5, 2, standardize=True, generator=torch.Generator())
    points = torch.rand(100_000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([4.0, 6.0])
    standardized = (points + torch.tensor([-1.0, 2.0]) - network.centre) / network.scale
    torch.testing.assert_close(standardized.mean(0), torch.zeros(2), rtol=0, atol=0.02)
    torch.testing.assert_close(standardized.std(0), torch.ones(2), rtol=0.02, atol=0)

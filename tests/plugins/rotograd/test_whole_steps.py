"""A whole step of RotoGrad against the paper: of a trunk in multi-task learning."""

import torch
from torch import nn

import gradhomog
from tests.plugins.rotograd.steps import keys_of, matrices, weights_of_the_paper
from tests.plugins.rows import normal


def test_one_step_of_the_trunk_is_that_of_the_papers_feature_gradient():
    """C Σ_k U_k backpropagated through trunk and rotations by autograd, in multi-task learning with common inputs."""
    torch.manual_seed(0)
    trunk, inputs = nn.Sequential(nn.Linear(5, 6), nn.Tanh()).double(), normal(7, 5)
    heads = [normal(6, 2, seed=k + 1) * 3**k for k in range(3)]
    pipe = gradhomog.pipeline("rotograd(lr=0.5, scale='paper')")
    first = None
    for _ in range(3):
        features = trunk(inputs)
        taps = pipe.transform(features.expand(3, *features.shape), keys_of(3))
        losses = [(taps[-1][k] @ head).square().mean() for k, head in enumerate(heads)]
        parameters = list(trunk.parameters())
        rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        slopes = [torch.autograd.grad(sum(losses), tap, retain_graph=True)[0] for tap in taps]
        own = [torch.autograd.grad(loss, features, retain_graph=True)[0] for loss in losses]  # G_k
        norms = [float(gradient.norm()) for gradient in own]
        first = first or norms
        weights = weights_of_the_paper(norms, first)
        feature_gradient = sum(weight * gradient for weight, gradient in zip(weights, own, strict=True))
        expected = torch.autograd.grad(features, parameters, feature_gradient)
        found = pipe.combine(
            {str(index): torch.stack(parts) for index, parts in enumerate(zip(*rows, strict=True))},
            features=[tap.detach() for tap in taps], feature_grads=slopes,
        )  # fmt: skip
        for index, (parameter, gradient) in enumerate(zip(parameters, expected, strict=True)):
            torch.testing.assert_close(found[str(index)], gradient, rtol=1e-9, atol=1e-12)
            parameter.data -= 0.01 * gradient
    assert float(matrices(pipe, 6, 3).sub(torch.eye(6)).norm()) > 0.05  # with rotations other than the identity

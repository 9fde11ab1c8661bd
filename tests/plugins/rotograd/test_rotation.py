"""RotoGrad's rotations: initial values, descent of the paper's loss, and alignment of gradients."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog_plugins._rotations.geodesic import haar
from tests.plugins.rotograd.steps import keys_of, learn, matrices, measured
from tests.plugins.rows import normal


@pytest.mark.parametrize("batch", [1, 5])  # fewer and more samples than half the features: two systems of equations
@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_a_step_goes_down_the_gradient_of_the_papers_loss(variant, batch):
    """The step in the code's coordinates, R e^A, by autograd through the exponential, relative to the mean norm."""
    lr, grads = 1e-6, normal(3, batch, 6, seed=batch) * torch.tensor([1.0, 4.0, 0.2])[:, None, None]
    pipe = gradhomog.pipeline(f"rotograd(lr={lr}, start='haar', variant='{variant}')")
    before = matrices(pipe, 6, 3)
    arriving = grads @ before  # R_kᵀ g̃_k
    norms = grads.flatten(1).norm(dim=1)
    goal = (arriving / norms[:, None, None]).mean(0)
    if variant == "reference":
        goal = goal * arriving.mean(0).norm() / norms.mean()
    learn(pipe, grads)
    for k, after in enumerate(matrices(pipe, 6, 3)):
        lower = torch.zeros(6, 6, dtype=torch.float64, requires_grad=True)
        strict = lower.tril(-1)
        turned = before[k] @ torch.matrix_exp(strict - strict.T)
        loss = -((grads[k] @ turned) * goal).sum() / norms.mean()
        (slope,) = torch.autograd.grad(loss, lower)
        torch.testing.assert_close((before[k].T @ after).tril(-1) / lr, -slope.tril(-1), rtol=1e-4, atol=1e-6)


def test_rotations_start_at_the_identity():
    # In the published code they are Haar-random: the parametrization samples a new matrix.
    features = normal(3, 2, 5)
    assert torch.equal(gradhomog.pipeline("rotograd").transform(features, keys_of(3))[-1], features)
    maps = normal(2, 3, 5, 4, 4)
    assert torch.equal(gradhomog.pipeline("rotograd").transform(maps, keys_of(2))[-1], maps)


def test_a_haar_start_is_a_different_uniform_rotation_for_every_key_and_seed():
    drawn = torch.stack([haar(3, seed) for seed in range(400)])
    torch.testing.assert_close(drawn @ drawn.mT, torch.eye(3, dtype=torch.float64).expand(400, 3, 3))
    torch.testing.assert_close(torch.linalg.det(drawn), torch.ones(400, dtype=torch.float64))
    # Of a uniform unit vector each entry has mean 0 and mean square 1/3 (standard errors 0.029 and 0.015).
    assert float(drawn.mean(0).abs().max()) < 0.12
    assert float((drawn.square().mean(0) - 1 / 3).abs().max()) < 0.06
    pipes = [gradhomog.pipeline(f"rotograd(start='haar', seed={seed})") for seed in (0, 0, 1)]
    one, again, other = (matrices(pipe, 5, 2) for pipe in pipes)
    assert torch.equal(one, again)
    assert float((one[0] - one[1]).norm()) > 0.5 < float((one - other).norm())
    learn(pipes[0], torch.zeros(2, 1, 5, dtype=torch.float64))
    assert torch.equal(matrices(pipes[0], 5, 2), one)


@pytest.mark.parametrize(("start", "pool"), [("identity", "sample"), ("haar", "task")])
def test_the_gradients_that_reach_the_trunk_align(start, pool):
    grads = normal(3, 1, 5)
    pipe = gradhomog.pipeline(f"rotograd(lr=0.5, start='{start}', pool='{pool}')")
    learn(pipe, grads, 80)
    arriving = nn.functional.normalize((grads @ matrices(pipe, 5, 3)).flatten(1), dim=1)
    assert float((arriving @ arriving.T).min()) > 0.999


def test_it_reports_angles_and_cosines_of_whole_batches():
    grads = normal(3, 2, 5)
    pipe = gradhomog.pipeline("rotograd(lr=0.3)")
    learn(pipe, grads, 3)
    turned = matrices(pipe, 5, 3)
    found = measured(pipe, grads)
    for name, vectors in (("before", grads), ("after", grads @ turned)):
        units = nn.functional.normalize(vectors.flatten(1), dim=1)
        assert found[f"feature_cosine_{name}"] == pytest.approx(float((units @ units.T).sum() - 3) / 6)
    chords = (turned - torch.eye(5, dtype=torch.float64)).flatten(1).norm(dim=1)
    assert found["angle"] == pytest.approx((2 * torch.asin(chords / 8**0.5)).tolist())

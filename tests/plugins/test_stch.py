"""Smooth Tchebycheff: its limits, and its logarithmic variant against the authors' code written out."""

import pytest
import torch
import torchjd.scalarization

import gradhomog
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses, weights

PREFERENCE = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def test_a_factor_of_the_preference_changes_nothing():
    losses = torch.tensor([0.5, 1.0, 0.8, 1.4], dtype=torch.float64)
    expected = gradient_of(torchjd.scalarization.STCH(0.1, PREFERENCE), lambda point: point, losses)
    for text in ("stch(weights=[1, 2, 3, 4])", "stch(weights=[2, 4, 6, 8])"):
        torch.testing.assert_close(weights(text, losses) / 4, expected / expected.sum())


def test_a_small_mu_leaves_the_worst_task_and_a_large_one_the_preference():
    losses = [1.0, 3.0, 2.0, 2.9]
    assert weights("stch(mu=1e-9)", losses).tolist() == [0, 4, 0, 0]
    found = weights("stch(mu=1e9, weights=[1, 2, 3, 4])", losses)
    assert found.tolist() == pytest.approx([0.4, 0.8, 1.2, 1.6])


def test_a_task_with_a_preference_of_zero_has_weight_zero_for_all_losses():
    for losses in ([1.0, 1e9], [-1e9, 5.0], [0.0, 0.0]):
        assert weights("stch(mu=0.01, weights=[1, 0])", losses).tolist() == [2, 0]


def test_preference_and_ideal_by_domain_follow_the_domain():
    text = 'stch(mu=1, weights={"a": 3}, ideal={"a": 1, "*": 0.5})'
    found = weights(text, [2.0, 1.0], domains=["b", "a"])
    heights = torch.tensor([0.25 * (2.0 - 0.5), 0.75 * 0.0], dtype=torch.float64)
    expected = torch.tensor([0.25, 0.75], dtype=torch.float64) * heights.exp()
    torch.testing.assert_close(found, expected / expected.mean())


def authors_losses(losses, nadir, mu):
    """The scalar that the authors' multi-task code differentiates, in the warm-up and after it, without its 1e-20."""
    if nadir is None:
        return losses.log().sum()
    return mu * ((losses / nadir).log() / mu).exp().sum().log() * len(losses)


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_in_logarithms_every_direction_is_the_gradient_of_the_authors_code(mu):
    generator = torch.Generator().manual_seed(0)
    pipe = gradhomog.pipeline(f"stch(log=true, mu={mu}, warmup=2, period=3, scale='paper')")
    theta, losses_of = quadratics()
    average, count, nadir = 0.0, 0, None
    for step in range(15):
        point = theta + 0.1 * torch.randn(6, generator=generator, dtype=torch.float64)
        rows, losses = rows_and_losses(losses_of, point)
        epoch = step // 3
        if epoch == 2:
            average, count = average + losses, count + 1
        elif epoch > 2:
            nadir = average / count

        def combined(values, nadir=nadir):
            return authors_losses(values, nadir, mu)

        torch.testing.assert_close(pipe.combine(rows, losses), gradient_of(combined, losses_of, point))


def test_a_domain_that_first_occurs_after_the_warm_up_uses_its_first_loss():
    pipe = gradhomog.pipeline("stch(log=true, warmup=0, period=1, mu=0.5)")
    weights(pipe, [1.0, 2.0], domains=["a", "b"])
    weights(pipe, [1.0, 4.0], domains=["a", "new"])
    found = weights(pipe, [1.0, 2.0], domains=["a", "new"])
    expected = torch.tensor([1.0, 0.5**2 / 2.0], dtype=torch.float64)  # (L/m)^{1/μ} / L
    torch.testing.assert_close(found, expected / expected.mean())


@pytest.mark.parametrize("mu", [0.1, 1e-3])
@pytest.mark.parametrize("scale", ["mean", "paper"])
def test_losses_near_the_end_of_float64_give_all_weight_to_the_greatest(mu, scale):
    losses = torch.tensor([1e306, 1e308, 1.0], dtype=torch.float64)
    found = gradhomog.pipeline(f"stch(mu={mu}, scale='{scale}')").homogenize(torch.eye(3), losses).weights
    torch.testing.assert_close(found / found.sum(), torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))

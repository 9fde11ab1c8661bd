"""GO4Align against the authors' recursion with the best groups."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from tests.plugins.from_losses import weights


@pytest.mark.parametrize("count", [1, 2, 6])
def test_every_step_is_the_authors_recursion_with_the_best_groups(count):
    pipe = gradhomog.pipeline("go4align(lr=0.3, scale='paper')")
    shares = torch.full((4,), 0.25, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        losses = torch.rand(4, generator=generator, dtype=torch.float64) + 0.1
        found = weights(pipe, losses)
        shares = shares * torch.exp(-0.3 * losses)
        shares = shares / shares.sum()
        indicators = losses.sum() / losses * shares
    # Two groups of four numbers on a line: the three largest, the two largest, or the largest alone.
    order = indicators.argsort()
    candidates = []
    for cut in (1, 2, 3):
        means = torch.empty(4, dtype=torch.float64)
        for members in (order[:cut], order[cut:]):
            means[members] = indicators[members].mean()
        candidates.append((float((means - indicators).square().sum()), means))
    torch.testing.assert_close(found / 4, min(candidates, key=lambda pair: pair[0])[1])


def test_tasks_of_one_group_have_one_weight():
    found = weights("go4align(groups=2)", [1.0, 1.2, 30.0, 29.0])
    assert float(found[0]) == float(found[1]) > 1 > float(found[2]) == float(found[3])


def test_with_one_group_all_weights_are_equal_and_with_n_they_are_inverse_losses():
    losses = [0.5, 2.0, 8.0]
    torch.testing.assert_close(weights("go4align(groups=1)", losses, steps=3), torch.ones(3, dtype=torch.float64))
    for groups in (3, 9):
        found = weights(f"go4align(groups={groups}, lr=0)", losses, steps=3)
        torch.testing.assert_close(found, weights("scale_invariant", losses))


def test_a_task_with_a_high_loss_loses_weight_over_the_steps_and_never_for_good():
    pipe = gradhomog.pipeline("go4align(groups=2, lr=1)")
    first = weights(pipe, [1.0, 1.5])
    later = weights(pipe, [1.0, 1.5], steps=5)
    assert float(later[1]) < float(first[1]) < 1
    weights(pipe, [1.0, 500.0], steps=10)
    assert float(weights(pipe, [500.0, 1.0], steps=20)[1]) > 1


def test_a_new_domain_has_the_mean_share():
    pipe = gradhomog.pipeline("go4align(groups=3, lr=0.5)")
    weights(pipe, [1.0, 2.0], domains=["a", "b"])
    a, b = 2 * torch.softmax(torch.tensor([-0.5, -1.0], dtype=torch.float64), dim=0)
    expected = torch.stack([b, a, torch.ones_like(a)])  # equal losses of this step cancel
    found = weights(pipe, [1.0, 1.0, 1.0], domains=["b", "a", "new"])
    torch.testing.assert_close(found, expected / expected.mean())


@pytest.mark.parametrize("losses", [[1e-300, 2e-300], [1e300, 2e300], [5e-324, 1e308]])
def test_losses_near_the_ends_of_float64_give_finite_weights(losses):
    found = weights("go4align(lr=0)", losses)
    torch.testing.assert_close(found, weights("scale_invariant", losses), rtol=1e-9, atol=1e-12)


def test_the_limit_of_the_papers_scale_is_that_of_the_weights_of_groups():
    # γ of the second task exceeds 1e30, the mean of all three does not.
    losses = [1.0, 4e-31, 1.0]
    found = gradhomog.pipeline("go4align(groups=1, lr=0, scale='paper')").combine(torch.eye(3), losses)
    expected = 1 / 3 * sum(losses) * sum(1 / loss for loss in losses) / 3
    assert found.tolist() == pytest.approx([expected] * 3)
    with pytest.raises(OptionError, match=r"p ΣL / L, averaged by group, must be at most .*task 1"):
        weights("go4align(groups=2, lr=0, scale='paper')", losses)

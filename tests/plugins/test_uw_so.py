"""UW-SO against the softmax of the inverse losses, and its limits."""

import pytest
import scipy.special
import torch

import gradhomog
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses, weights


@pytest.mark.parametrize("temperature", [0.3, 1.0, 20.0])
def test_the_weights_are_the_softmax_of_the_inverse_losses_over_t(temperature):
    losses = torch.tensor([0.5, 2.0, 0.4, 1.0], dtype=torch.float64)
    expected = 4 * scipy.special.softmax(1 / losses.numpy() / temperature)
    torch.testing.assert_close(weights(f"uw_so(temperature={temperature})", losses), torch.as_tensor(expected))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_direction_is_the_gradient_of_the_papers_loss_with_its_stop_gradient(seed):
    theta, losses_of = quadratics(seed=seed)
    rows, losses = rows_and_losses(losses_of, theta)

    def papers(values):
        return (torch.softmax(1 / values.detach() / 2, dim=0) * values).sum()

    found = gradhomog.pipeline("uw_so(temperature=2)").combine(rows, losses)
    torch.testing.assert_close(found, gradient_of(papers, losses_of, theta), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([5e-324, 1.0], [2, 0]), ([1e-300, 2e-300], [2, 0]), ([5e-324, 5e-324], [1, 1]), ([1e308, 1.7e308], [1, 1])],
)
def test_losses_near_the_ends_of_float64_give_all_weight_to_the_smallest_or_equal_weights(losses, expected):
    assert weights("uw_so", losses).tolist() == expected

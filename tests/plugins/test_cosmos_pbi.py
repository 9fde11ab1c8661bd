"""COSMOS and PBI where derivatives of TorchJD's scalarizations are negative, and on the ray of the preference."""

import pytest
import torch
import torchjd.scalarization

import gradhomog
from tests.plugins.from_losses import gradient_of, weights

PREFERENCE = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def derivatives(scalarization, losses):
    return gradient_of(scalarization, lambda point: point, torch.as_tensor(losses, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("method", ["cosmos", "pbi"])
def test_with_a_large_penalty_the_weights_are_torchjds_derivatives_without_the_negative_ones(method, seed):
    losses = torch.rand(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    scalarizations = {"cosmos": torchjd.scalarization.COSMOS, "pbi": torchjd.scalarization.PBI}
    theirs = derivatives(scalarizations[method](5.0, PREFERENCE), losses)
    assert float(theirs.min()) < 0 < float(theirs.max())
    found = weights(f"{method}(penalty=5, preferences=[1, 2, 3, 4])", losses)
    torch.testing.assert_close(found / 4, theirs.clamp_min(0) / theirs.clamp_min(0).sum(), rtol=1e-6, atol=1e-9)
    paper = weights(f"{method}(penalty=5, preferences=[1, 2, 3, 4], scale='paper')", losses)
    torch.testing.assert_close(paper / 4, theirs.clamp_min(0), rtol=1e-6, atol=1e-9)


def test_in_the_example_that_needs_it_the_sum_of_the_papers_weights_is_negative():
    scalarization = torchjd.scalarization.COSMOS(2.0, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert float(derivatives(scalarization, [0.1, 0.3]).sum()) < 0
    assert weights("cosmos", [0.1, 0.3]).tolist() == [0, 2]


@pytest.mark.parametrize("method", ["cosmos", "pbi"])
def test_preferences_by_domain_follow_the_domain_and_their_factor_changes_nothing(method):
    losses = [1.0, 1.3, 0.8]
    expected = weights(f"{method}(penalty=0.2, preferences=[3, 1, 2])", losses)
    scaled = weights(f"{method}(penalty=0.2, preferences=[6, 2, 4])", losses)
    text = f'{method}(penalty=0.2, preferences={{"a": 3, "c": 2, "*": 1}})'
    torch.testing.assert_close(scaled, expected)
    torch.testing.assert_close(weights(text, losses, domains=["a", "b", "c"]), expected)
    order = [2, 0, 1]
    found = weights(text, [losses[i] for i in order], domains=["c", "a", "b"])
    torch.testing.assert_close(found, expected[order])


@pytest.mark.parametrize("method", ["cosmos", "pbi"])
def test_losses_on_the_ray_and_losses_of_zero_have_the_weights_of_the_preference(method):
    expected = PREFERENCE / PREFERENCE.mean()
    for losses in (PREFERENCE, 7 * PREFERENCE, 0 * PREFERENCE):
        found = weights(f"{method}(preferences=[1, 2, 3, 4])", losses)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("losses", [[0.1, 0.3], [0.7, 2.1], [0.3, 0.9], [1.1, 3.3]])
def test_the_rounding_of_float32_losses_does_not_move_them_from_the_ray_of_pbi(losses):
    found = gradhomog.pipeline("pbi(preferences=[1, 3])").homogenize(torch.eye(2), torch.tensor(losses)).weights
    torch.testing.assert_close(found.double(), torch.tensor([0.5, 1.5], dtype=torch.float64), rtol=1e-6, atol=0)


def test_for_large_losses_cosmos_is_the_weighted_sum_and_for_small_ones_the_cosine():
    preference = [1, 2, 1]
    torch.testing.assert_close(
        weights(f"cosmos(preferences={preference})", [9e306, 2e306, 5e306]),
        torch.tensor([0.75, 1.5, 0.75], dtype=torch.float64),
    )
    found = weights(f"cosmos(preferences={preference})", [9e-300, 2e-300, 5e-300])
    assert found.tolist() == pytest.approx(
        weights(f"cosmos(preferences={preference}, penalty=1e9)", [9, 2, 5]).tolist()
    )


def test_a_loss_of_zero_with_all_the_preference_leaves_the_preference():
    # The derivative of the other task is zero and that of this one negative.
    assert weights("cosmos(preferences=[1, 0])", [0.0, 1.0]).tolist() == [2, 0]

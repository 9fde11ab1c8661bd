"""Uncertainty weighting against TorchJD's loss under torch's Adam, its fixed point, and its bound."""

import math

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from tests.plugins.from_losses import weights


def test_the_form_for_classification_moves_by_its_own_derivative():
    losses = torch.tensor([0.2, 1.0, 7.0], dtype=torch.float64)
    variances = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([variances], lr=0.1)
    pipe = gradhomog.pipeline("uw(kind='classification', lr=0.1, scale='paper')")
    for _ in range(10):
        torch.testing.assert_close(weights(pipe, losses) / 3, (-variances).exp().detach(), rtol=1e-9, atol=0)
        optimizer.zero_grad()
        ((-variances).exp() * losses + variances / 2).sum().backward()
        optimizer.step()


def test_one_kind_for_all_cancels_in_the_mean_and_two_kinds_start_at_two_to_one():
    assert weights("uw", [1.0, 3.0]).tolist() == weights("uw(kind='classification')", [1.0, 3.0]).tolist() == [1, 1]
    found = weights('uw(kind={"a": "classification", "*": "regression"})', [1.0, 3.0], domains=["a", "b"])
    assert found.tolist() == pytest.approx([4 / 3, 2 / 3])


@pytest.mark.parametrize(("method", "factor"), [("uw", 0.5), ("imtl_l", 1)])
def test_a_loss_of_zero_ends_at_the_bound_and_not_at_infinity(method, factor):
    found = weights(f"{method}(lr=0.5, bound=2, scale='paper')", [0.0, 1.0], steps=300) / 2
    assert found.tolist() == pytest.approx([factor * math.exp(2), factor], rel=1e-3)


def test_a_kind_by_domain_names_every_domain():
    pipe = gradhomog.pipeline("uw(kind={'imges': 'classification'})")
    with pytest.raises(OptionError, match="`kind` has entries for the tasks imges; got images, text in the batch"):
        pipe.combine(torch.eye(2), losses=[1.0, 2.0], domains=["images", "text"])

"""MetaOptNet: ridge regression against NumPy's least squares, and rows against the primal form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gradhomog_adapters.metaoptnet import MetaOptNet
from tests.adapters import checks


def weights(support, y, strength):
    """argmin ‖XW − Y‖² + λ‖W‖², as least squares of X over √λ I."""
    features = support.shape[1]
    above = np.concatenate([support, np.sqrt(strength) * np.eye(features)])
    below = np.concatenate([np.eye(checks.WAYS)[y], np.zeros((features, checks.WAYS))])
    return np.linalg.lstsq(above, below, rcond=None)[0]


@pytest.mark.parametrize("strength", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("shots", [1, 4])  # fewer supports than features, and more
def test_outputs_are_those_of_regularized_least_squares(strength, shots):
    encoder, head = checks.networks()
    task = checks.tasks(shots=shots)[0]
    learner = MetaOptNet(encoder, head, regularization=strength, scale=3.0)
    outputs = learner.predict(task.support_x, task.support_y, task.query_x)
    support, queries = (encoder(x).detach().numpy() for x in (task.support_x, task.query_x))
    expected = 3 * queries @ weights(support, task.support_y.numpy(), strength)
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-8, atol=1e-11)


def test_the_scale_is_trained():
    learner = MetaOptNet(*checks.networks())
    rows = learner.rows(checks.tasks(shots=5))
    assert rows.jacobian["learner.logits.scale"].shape == (3, 1)
    assert rows.jacobian["learner.logits.scale"].abs().min() > 0
    learner.extra_modules.requires_grad_(False)
    assert "learner.logits.scale" not in learner.rows(checks.tasks(shots=5)).jacobian


def test_large_features_keep_their_digits_in_float32():
    # The condition number of the Gramian is 1e8: a float32 solution would have no correct digits.
    torch.manual_seed(0)
    x, z = torch.randn(6, 8) * 1e3, torch.randn(4, 8) * 1e3
    y = torch.arange(3).repeat(2)
    learner = MetaOptNet(nn.Identity(), nn.Linear(8, 3), regularization=1e-2)
    expected = z.double().numpy() @ weights(x.double().numpy(), y.numpy(), 1e-2)
    np.testing.assert_allclose(learner.predict(x, y, z).numpy(), expected, rtol=1e-5, atol=1e-5)

"""ProtoNet: rows against a reference loss, distances against SciPy's, and the equivalent linear classifier."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch import nn

from gradhomog_adapters.protonet import ProtoNet
from tests.adapters import checks


def reference_loss(encoder, task):
    """Mean of −log p of the true class, computed for one query and one class at a time."""
    support, queries = encoder(task.support_x).flatten(1), encoder(task.query_x).flatten(1)
    total = 0.0
    for feature, label in zip(queries, task.query_y, strict=True):
        scores = [-((feature - support[task.support_y == w].mean(0)).norm() ** 2) for w in range(checks.WAYS)]
        total = total - scores[int(label)] + torch.stack(scores).logsumexp(0)
    return total / len(queries)


@pytest.mark.parametrize(
    ("make", "norm"), [(checks.networks, False), (checks.networks, True), (checks.image_networks, False)]
)
def test_rows_are_those_of_the_reference_loss(make, norm):
    encoder, head = make(norm)
    learner = ProtoNet(encoder, head)
    encoder.train()
    batch = checks.tasks(shape=(3,) if make is checks.networks else (1, 6, 6))
    checks.assert_rows_match_autograd(learner, batch, lambda task: reference_loss(encoder, task))


def test_outputs_are_the_squared_distances_of_scipy_to_the_means():
    encoder, head = checks.networks()
    task = checks.tasks(shots=4)[0]
    outputs = ProtoNet(encoder, head).predict(task.support_x, task.support_y, task.query_x)
    support, queries = (encoder(x).detach().numpy() for x in (task.support_x, task.query_x))
    means = np.stack([support[task.support_y.numpy() == w].mean(0) for w in range(checks.WAYS)])
    np.testing.assert_allclose(outputs.numpy(), -cdist(queries, means, "sqeuclidean"), rtol=1e-12)


def test_close_classes_far_from_the_origin_are_separated_in_float32():
    # ‖z‖² − 2⟨z, c⟩ + ‖c‖² would lose all digits of a distance of 1e-3 at 1e3.
    x = torch.tensor([[1000.0], [1000.001]])
    learner = ProtoNet(nn.Identity(), nn.Linear(1, 2))
    assert learner.predict(x, torch.tensor([0, 1]), x).argmax(1).tolist() == [0, 1]


def test_the_head_may_have_more_outputs_than_a_task_has_classes():
    encoder, _ = checks.networks()
    task = checks.tasks()[0]
    few = ProtoNet(encoder, nn.Linear(4, 3).double())
    many = ProtoNet(encoder, nn.Linear(4, 20).double())
    outputs = [one.predict(task.support_x, task.support_y, task.query_x) for one in (few, many)]
    assert torch.equal(outputs[1][:, :3], outputs[0])
    torch.testing.assert_close(torch.tensor(many.evaluate([task]).losses), torch.tensor(few.evaluate([task]).losses))
    rows = many.rows([task]).jacobian
    for name, block in few.rows([task]).jacobian.items():
        if name.startswith("encoder."):
            torch.testing.assert_close(rows[name], block)

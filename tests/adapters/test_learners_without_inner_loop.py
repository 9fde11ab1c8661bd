"""ProtoNet and MetaOptNet against reference losses and least squares; queries alone are transformed; absent classes."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from gradhomog import Homogenizer, NonfiniteError, OptionError, Task
from gradhomog_adapters.metaoptnet import MetaOptNet
from gradhomog_adapters.protonet import ProtoNet
from gradhomog_adapters.relationnet import RelationNet
from tests.adapters import checks


def protonet_loss(encoder, task):
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
    checks.assert_rows_match_autograd(learner, batch, lambda task: protonet_loss(encoder, task))


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


LEARNERS = {
    "protonet": ProtoNet,
    "metaoptnet": partial(MetaOptNet, regularization=2.0),
    "relationnet": RelationNet,
    "relationnet softmax": partial(RelationNet, objective="softmax", hidden=9),
}


def make(name, homogenizers=None):
    return LEARNERS[name](*checks.networks(), homogenizers)


class LinearTransform(Homogenizer):
    """Query features times a matrix."""

    def __init__(self, matrix):
        self.matrix = matrix

    def transform(self, features, keys):
        return features @ self.matrix.T


def rotation(size):
    generator = torch.Generator().manual_seed(3)
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]


@pytest.mark.parametrize("name", ["protonet", "metaoptnet"])
def test_queries_are_rotated_and_supports_are_not(name):
    # Rotating queries by R is equivalent to rotating supports by its transpose; rotating both has no effect.
    batch, turn = checks.tasks(), rotation(4)
    turned = make(name, [LinearTransform(turn)]).rows(batch)
    plain = make(name).rows(batch)
    assert (turned.losses - plain.losses).abs().min() > 1e-3

    class Both(nn.Module):
        def __init__(self, encoder, matrix):
            super().__init__()
            self.encoder = encoder
            self.register_buffer("matrix", matrix)

        def forward(self, x):
            return self.encoder(x) @ self.matrix.T

    encoder, head = checks.networks()
    both = LEARNERS[name](Both(encoder, turn), head).rows(batch)
    torch.testing.assert_close(both.losses, plain.losses)
    # Supports are rotated by the transpose of R; queries are rotated by the transpose and then by R.
    back = LEARNERS[name](Both(encoder, turn.T), head, [LinearTransform(turn)]).rows(batch)
    torch.testing.assert_close(back.losses, turned.losses)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_class_without_supports_has_no_effect(name):
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 2, 0, 2])
    learner = make(name)
    outputs = learner.predict(x, y, torch.randn(5, 3, dtype=torch.float64))
    assert outputs[:, 1].tolist() == [0.0 if name == "relationnet" else -torch.inf] * 5
    rows = learner.rows([Task(x, y, x, y)])
    assert all(block.isfinite().all() for block in rows.jacobian.values())
    assert rows.losses.isfinite().all()


@pytest.mark.parametrize("name", ["protonet", "metaoptnet", "relationnet softmax"])
def test_a_query_of_a_class_without_supports_raises_as_not_finite(name):
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 2, 0, 2])
    learner = make(name)
    with pytest.raises(NonfiniteError):
        learner.step([Task(x, y, x, torch.tensor([0, 1, 2, 0]))], torch.optim.SGD(learner.parameters(), lr=0.1))


def test_a_head_without_a_linear_layer_requires_the_input_shape():
    encoder = checks.networks()[0]
    with pytest.raises(OptionError, match=r"`input_shape` must be given.*no torch\.nn\.Linear"):
        RelationNet(encoder, nn.Identity())
    assert RelationNet(encoder, nn.Identity(), input_shape=[3]).shape == (4,)

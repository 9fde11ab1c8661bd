"""Learners without an inner loop: transforms of queries only, and classes without support examples."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from gradhomog import Homogenizer, NonfiniteError, OptionError, Task
from gradhomog_adapters.metaoptnet import MetaOptNet
from gradhomog_adapters.protonet import ProtoNet
from gradhomog_adapters.relationnet import RelationNet
from tests.adapters import checks

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

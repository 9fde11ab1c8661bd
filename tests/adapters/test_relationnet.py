"""RelationNet: rows against reference pairs; sizes of the published module; maps of the benchmark networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradhomog import DataError, Task
from gradhomog.experiments import content
from gradhomog_adapters.relationnet import RelationNet, make_feature_map_module
from tests.adapters import checks
from tests.adapters.checks import MAPS


@pytest.mark.parametrize("objective", ["mse", "softmax"])
@pytest.mark.parametrize("maps", [False, True])
def test_rows_are_those_of_the_reference_pairs(objective, maps):
    encoder, head = checks.image_networks() if maps else checks.networks()
    learner = RelationNet(encoder, head, objective=objective, **(MAPS if maps else {}))
    batch = checks.tasks(shape=(1, 6, 6) if maps else (3,))
    relation = learner.extra_modules["relation"]

    def loss(task):
        scores = relation(checks.reference_pairs(encoder, task)).reshape(-1, checks.WAYS)
        if objective == "softmax":
            return nn.functional.cross_entropy(scores, task.query_y)
        return nn.functional.mse_loss(torch.sigmoid(scores), nn.functional.one_hot(task.query_y, checks.WAYS).double())

    checks.assert_rows_match_autograd(learner, batch, loss)


@pytest.mark.parametrize(("size", "padding", "numbers"), [(5, 1, 64), (7, 1, 64), (19, 0, 576), (54, 0, 9216)])
def test_the_module_for_maps_has_the_published_sizes(size, padding, numbers):
    # Chen et al. 2019: after two blocks s ↦ (s − 2 + 2·padding) / 2 rounded down; 64 maps.
    module = make_feature_map_module((64, size, size), 8)
    kinds = [type(part).__name__ for part in module]
    block = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert kinds == [*block, *block, "Flatten", "Linear", "ReLU", "Linear"]
    assert (module[0].in_channels, module[0].out_channels, module[0].padding) == (128, 64, (padding, padding))
    assert (module[9].in_features, module[9].out_features, module[11].out_features) == (numbers, 8, 1)
    assert module(torch.rand(2, 128, size, size)).shape == (2, 1)


def test_maps_of_size_one_are_not_pooled():
    assert make_feature_map_module((4, 1, 1), 8)(torch.rand(3, 8, 1, 1)).shape == (3, 1)


@pytest.mark.parametrize("name", ["conv4", "resnet10"])
def test_the_maps_of_the_benchmark_networks_are_supported(name):
    encoder, head = content.build_network(name, (1, 28, 28), checks.WAYS, 4, flatten=False)
    learner = RelationNet(encoder, head, maps=True, input_shape=[1, 28, 28])
    before = {key: value.clone() for key, value in encoder.named_buffers()}
    batch = checks.tasks(2, shape=(1, 28, 28))
    batch = [Task(t.support_x.float(), t.support_y, t.query_x.float(), t.query_y) for t in batch]
    rows = learner.rows(batch)
    assert all(block.isfinite().all() for block in rows.jacobian.values())
    assert all(torch.equal(value, before[key]) for key, value in encoder.named_buffers())


def test_features_of_a_different_shape_raise():
    encoder, _ = checks.image_networks()
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, checks.WAYS)).double()
    learner = RelationNet(encoder, head, **MAPS)
    with pytest.raises(DataError, match=r"features of shape \[2, 5, 5\]; the encoder returned \[2, 7, 7\]"):
        learner.rows(checks.tasks(shape=(1, 8, 8)))


def test_its_loss_can_be_replaced():
    batch = checks.tasks()
    learner = RelationNet(*checks.networks(), loss=lambda outputs, y: outputs.sum())
    torch.testing.assert_close(learner.rows(batch).losses[0], learner.rows([batch[0]]).losses[0])
    assert learner.rows(batch).losses.min() > 1  # a sum of 27 relations, not a mean of squares

"""Networks: published shapes and sizes."""

import pytest
import torch

from gradhomog import ConfigError
from gradhomog.bench import networks


@pytest.mark.parametrize(("size", "features"), [(28, 64), (32, 256), (84, 1600)])
def test_conv4_has_the_published_features_and_parameters(size, features):
    encoder, head = networks.conv4(3, 64, size, 5)
    assert encoder(torch.zeros(2, 3, size, size)).shape == (2, features)
    assert sum(p.numel() for p in encoder.parameters()) == 113_088
    assert head.weight.shape == (5, features)


def test_conv4_starts_with_the_stated_spread():
    torch.manual_seed(0)
    encoder, _ = networks.conv4(3, 64, 28, 5)
    assert float(encoder[4].weight.detach().std()) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def test_mlp_takes_vectors_and_gives_targets():
    encoder, head = networks.build("mlp", (1,), 1, 40)
    assert head(encoder(torch.zeros(7, 1))).shape == (7, 1)
    assert sum(p.numel() for p in [*encoder.parameters(), *head.parameters()]) == 1761


def test_conv4_refuses_vectors():
    with pytest.raises(ConfigError, match=r"conv4 takes square images; .*\(1,\)"):
        networks.build("conv4", (1,), 1, 8)

"""Networks equal the published ones: numbers of parameters, names, initial values and outputs."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import gradhomog_data.networks
from gradhomog.experiments import content
from tests.data.networks.names import IMAGES


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("conv4", 113_088),
        ("conv6", 187_200),
        ("resnet10", 4_905_792),
        ("resnet18", 11_176_512),
        ("resnet12", 12_424_320),
    ],
)
def test_encoders_have_the_published_number_of_parameters(name, count):
    encoder, _ = content.build_network(name, (3, 84, 84), 5, 64)
    assert _count(encoder) == count


@pytest.mark.parametrize("name", IMAGES)
def test_convolutions_start_normal_with_the_published_variance_and_norms_at_one_and_zero(name):
    torch.manual_seed(0)
    encoder, _ = content.build_network(name, (3, 32, 32), 5, 32)
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.detach().double()
            variance = 2 / (weight.shape[0] * weight.shape[2] * weight.shape[3])
            count = weight.numel()
            # Five standard errors of the mean and of the variance of `count` normal numbers.
            assert abs(float(weight.mean())) < 5 * math.sqrt(variance / count)
            assert abs(float(weight.var()) / variance - 1) < 5 * math.sqrt(2 / count)
            if count > 5000:  # a normal's fourth moment is 3 variances squared; a uniform's is 1.8
                assert float(weight.pow(4).mean()) / variance**2 == pytest.approx(3, abs=0.5)
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))


def test_the_names_of_parameters_are_those_of_checkpoints():
    conv4 = gradhomog_data.networks.conv4((1, 28, 28), 5, 2)[0]
    assert [key for key, _ in conv4.named_parameters()] == [
        f"{4 * block + layer}.{kind}" for block in range(4) for layer in (0, 1) for kind in ("weight", "bias")
    ]
    vectors = gradhomog_data.networks.mlp((1,), 1, 2)[0]
    assert list(vectors.state_dict()) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    resnet = set(gradhomog_data.networks.resnet18((3, 32, 32), 5, 2)[0].state_dict())
    torchvisions = {"conv1.weight", "bn1.running_mean", "layer1.1.conv2.weight", "layer2.0.downsample.1.bias"}
    assert torchvisions < resnet
    assert "layer1.0.downsample.0.weight" not in resnet  # the first stage of torchvision has no projection
    theirs = {"layer1.0.conv3.weight", "layer1.0.downsample.0.weight", "layer4.0.bn3.running_var"}
    assert theirs < set(gradhomog_data.networks.resnet12((3, 32, 32), 5, 2)[0].state_dict())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "blocks"), [("resnet10", 1), ("resnet18", 2), ("resnet12", 1)])
def test_residual_networks_compute_the_published_formula(name, blocks, training):
    torch.manual_seed(0)
    encoder, _ = content.build_network(name, (3, 40, 40), 5, 4)
    encoder.double().train(training)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            for vector in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(vector, 0.5, 1.5)
    state = {key: value.detach().clone() for key, value in encoder.state_dict().items()}
    images = torch.randn(6, 3, 40, 40, dtype=torch.float64)

    def norm(x, at):
        mean, var = state[f"{at}.running_mean"], state[f"{at}.running_var"]
        if training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        scaled = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return scaled * state[f"{at}.weight"][:, None, None] + state[f"{at}.bias"][:, None, None]

    def branch(x, at, convolutions, stride, slope):
        for index in range(1, convolutions + 1):
            x = functional.conv2d(
                x if index == 1 else functional.leaky_relu(x, slope),
                state[f"{at}.conv{index}.weight"],
                stride=stride if index == 1 else 1,
                padding=1,
            )
            x = norm(x, f"{at}.bn{index}")
        return x  # fmt: skip

    x = images
    if name != "resnet12":
        x = functional.relu(norm(functional.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1"))
        x = functional.max_pool2d(x, 3, 2, 1)
    for stage in range(1, 5):
        for number in range(blocks):
            at = f"layer{stage}.{number}"
            stride = 2 if name != "resnet12" and stage > 1 and number == 0 else 1
            skip = x
            if f"{at}.downsample.0.weight" in state:
                skip = norm(
                    functional.conv2d(x, state[f"{at}.downsample.0.weight"], stride=stride), f"{at}.downsample.1"
                )
            if name == "resnet12":
                x = functional.max_pool2d(functional.leaky_relu(branch(x, at, 3, 1, 0.1) + skip, 0.1), 2)
            else:
                x = functional.relu(branch(x, at, 2, stride, 0.0) + skip)
    torch.testing.assert_close(encoder(images), x.mean((2, 3)), rtol=1e-10, atol=1e-10)


def test_mlp_with_forty_units_has_the_parameters_of_the_sinusoid_network():
    encoder, head = content.build_network("mlp", (1,), 1, 40)
    assert head(encoder(torch.zeros(7, 1))).shape == (7, 1)
    assert _count(encoder) + _count(head) == 1761


def _count(module):
    return sum(parameter.numel() for parameter in module.parameters())

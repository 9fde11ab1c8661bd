"""Networks by name: the published ones, functions of their parameters, and inputs that they do not support."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

import gradhomog_data.networks
from gradhomog import ConfigError
from gradhomog.experiments.run_file import content
from gradhomog.experiments.run_file.schema import load

IMAGES = ("conv4", "conv6", "resnet10", "resnet12", "resnet18")
NETWORKS = (*IMAGES, "mlp")


def test_run_files_accept_exactly_the_names_of_networks():
    assert tuple(content.NETWORKS) == tuple(sorted(NETWORKS))
    with pytest.raises(
        ConfigError, match=r"`network.name` must be one of conv4, .* module:function; got 'Conv4'\. Did"
    ):
        load(None, ["network.name=Conv4"])


SOURCE = """
import math
from torch import nn
def linear(input_shape, outputs, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width)), nn.Linear(width, outputs)
def pooled(input_shape, outputs, width, *, flatten=True):
    body, pool = nn.Conv2d(input_shape[0], width, 3), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Linear(width, outputs)
    return (nn.Sequential(body, pool), head) if flatten else (body, nn.Sequential(pool, head))
"""


def test_a_function_of_a_module_is_a_network(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    assert load(None, ["network.name=my_networks:linear"]).network.name == "my_networks:linear"
    encoder, head = content.build_network("my_networks:linear", (3,), 5, 8)
    assert head(encoder(torch.zeros(2, 3))).shape == (2, 5)
    assert not content.has_maps("my_networks:linear")
    encoder, head = content.build_network("my_networks:pooled", (3, 8, 8), 5, 4, flatten=False)
    assert encoder(torch.zeros(2, 3, 8, 8)).shape == (2, 4, 6, 6)
    assert content.has_maps("my_networks:pooled")
    for name in ("my_networks:missing", "no_networks:linear"):
        with pytest.raises(ConfigError, match=rf"`network.name` {name} cannot be imported: .* PYTHONPATH"):
            content.build_network(name, (3,), 5, 8)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("shape", [(1,), (3, 32, 28)])
def test_networks_for_images_reject_vectors_and_rectangular_images(name, shape):
    with pytest.raises(ConfigError, match=rf"{name} takes square images; .*\({shape[0]},"):
        content.build_network(name, shape, 5, 8)


@pytest.mark.parametrize("name", ["conv4", "conv6", "resnet12"])
def test_images_that_pooling_reduces_to_nothing_raise_with_the_smallest_size(name):
    content.build_network(name, (3, 16, 16), 5, 2)
    with pytest.raises(ConfigError, match=rf"{name} needs images of at least 16×16 pixels: .* got 15×15"):
        content.build_network(name, (3, 15, 15), 5, 2)


def test_mlp_without_flatten_raises():
    with pytest.raises(ConfigError, match="mlp has no feature maps"):
        content.build_network("mlp", (3,), 5, 8, flatten=False)


@pytest.mark.parametrize(
    ("name", "shape", "width", "count"),
    [
        ("conv4", (3, 84, 84), 64, 113_088),
        ("conv6", (3, 84, 84), 64, 187_200),
        ("resnet10", (3, 84, 84), 64, 4_905_792),
        ("resnet18", (3, 84, 84), 64, 11_176_512),
        ("resnet12", (3, 84, 84), 64, 12_424_320),
        ("mlp", (1,), 40, 1761 - 41),  # of the network for sinusoids, without its head
    ],
)
def test_encoders_have_the_published_number_of_parameters(name, shape, width, count):
    encoder, _ = content.build_network(name, shape, 5, width)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == count


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
    """Those of residual networks are pinned by the published formula below."""
    conv4 = gradhomog_data.networks.conv4((1, 28, 28), 5, 2)[0]
    assert [key for key, _ in conv4.named_parameters()] == [
        f"{4 * block + layer}.{kind}" for block in range(4) for layer in (0, 1) for kind in ("weight", "bias")
    ]
    vectors = gradhomog_data.networks.mlp((1,), 1, 2)[0]
    assert list(vectors.state_dict()) == ["1.weight", "1.bias", "3.weight", "3.bias"]


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


def _small(name, *, shape=(1, 16, 16), width=2, **options):
    torch.manual_seed(0)
    if name == "mlp":
        shape = (4,)
    encoder, head = content.build_network(name, shape, 3, width, **options)
    return encoder.double(), head.double(), torch.randn(6, *shape, dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_layer_works_in_place(name):
    encoder, head, _ = _small(name)
    assert not [layer for layer in [*encoder.modules(), *head.modules()] if getattr(layer, "inplace", False)]


SLOW = ("resnet12", "resnet18")


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NETWORKS])
def test_second_derivatives_equal_finite_differences(name):
    encoder, head, inputs = _small(name)
    names = [key for key, _ in encoder.named_parameters()]

    def outputs(*values):
        return head(functional_call(encoder, dict(zip(names, values, strict=True)), inputs)).tanh()

    values = [value.detach().clone().requires_grad_() for value in encoder.parameters()]
    assert torch.autograd.gradgradcheck(outputs, values, fast_mode=True)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_functional_call_equals_the_module_with_the_same_parameters(name):
    encoder, _, inputs = _small(name)
    encoder.eval()
    stacked = {key: torch.stack([value.detach() * factor for factor in (1.0, 0.5, 2.0)])
               for key, value in encoder.named_parameters()}  # fmt: skip
    together = vmap(lambda values: functional_call(encoder, values, inputs))(stacked)
    for index in range(3):
        values = {key: value[index] for key, value in stacked.items()}
        alone = functional_call(encoder, values, inputs)
        encoder.load_state_dict(values, strict=False)
        torch.testing.assert_close(alone, encoder(inputs), rtol=0, atol=0)
        torch.testing.assert_close(together[index], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", IMAGES)
def test_without_flatten_the_encoder_returns_maps_and_the_network_is_the_same_function(name):
    encoder, head, _ = _small(name)
    maps, rest, inputs = _small(name, flatten=False)
    features = maps(inputs)
    assert features.dim() == 4
    assert features.shape[0] == 6
    torch.testing.assert_close(rest(features), head(encoder(inputs)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "size", "side"),
    [("conv4", 84, 5), ("conv6", 84, 5), ("resnet10", 224, 7), ("resnet18", 84, 3), ("resnet12", 84, 5)],
)
def test_maps_have_the_published_sides(name, size, side):
    encoder, _ = content.build_network(name, (3, size, size), 5, 2, flatten=False)
    assert encoder(torch.zeros(2, 3, size, size)).shape[2:] == (side, side)

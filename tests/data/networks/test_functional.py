"""Networks are functions of their parameters: no in-place layers, higher derivatives, with and without `flatten`."""

import pytest
import torch
from torch.func import functional_call, vmap

from gradhomog.experiments import content
from tests.data.networks.names import IMAGES, NETWORKS


def _small(name, *, shape=(1, 16, 16), width=2, **options):
    torch.manual_seed(0)
    if name == "mlp":
        shape = (4,)
    encoder, head = content.build_network(name, shape, 3, width, **options)
    return encoder.double(), head.double(), torch.randn(6, *shape, dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_layer_works_in_place(name):
    encoder, head, inputs = _small(name)
    assert not [layer for layer in [*encoder.modules(), *head.modules()] if getattr(layer, "inplace", False)]
    untouched = inputs.clone()
    leaf = inputs.requires_grad_()
    head(encoder(leaf)).sum().backward()
    assert torch.equal(leaf, untouched)


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

"""The layers that ISI drops in: convolutions and poolings, counted, named or matched; others raise."""

import math

import pytest
import torch
from torch import nn

from gradhomog import OptionError
from gradhomog_plugins.isi import ISI
from tests.plugins.isi.networks import attached, images, network


def dropped_layers(encoder, isi, x):
    with attached(isi, encoder):
        encoder(x)
    return {name.removeprefix("drop_rate.") for name in isi.measured(None)} - {"drop_rate"}


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        (1, {"0"}),
        (2, {"0", "3"}),
        (9, {"0", "3"}),
        ("3", {"3"}),
        ("*", {"0", "2", "3", "5"}),
        (["[03]", "5"], {"0", "3", "5"}),
    ],
)
def test_layers_are_counted_named_or_matched(layers, found):
    assert dropped_layers(network(), ISI(layers=layers), images()) == found


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_inputs_have_one_to_three_dimensions(dims):
    conv, pool = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1], (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1]
    encoder = nn.Sequential(conv(2, 4, 3, padding="same", dilation=2), nn.ReLU(), pool(2), conv(4, 4, 2, stride=2))
    x = torch.randn(3, 2, *[9] * dims)
    assert dropped_layers(encoder, ISI(layers="*", radius=1), x) == {"0", "2", "3"}
    maps = ISI(layers="*", radius=1).maps(encoder, x)
    assert [tuple(maps[name].shape[1:]) for name in ("0", "2", "3")] == [(9,) * dims, (4,) * dims, (2,) * dims]


def test_a_pooling_drops_by_the_most_informative_patch_of_each_window():
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True))
    both = ISI(layers="*", temperature=1.0, rate=0.1).maps(encoder, images(size=10))
    share = (1 - both["0"]).log() / math.log(0.9)  # S, up to a factor, at temperature 1
    least = -nn.MaxPool2d(3, 2, ceil_mode=True)(-share[:, None])[:, 0]
    expected = 1 - 0.9 ** (least / least.flatten(1).mean(1)[:, None, None])
    torch.testing.assert_close(both["2"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("conv*", r"'conv\*' matches nothing. Available: 0 \(Conv2d\), 2 \(MaxPool2d\)"),
        (["0", "1"], r"'1' matches 1 \(Tanh\)"),
    ],
)
def test_layers_that_do_not_exist_or_have_no_patches_raise(layers, message):
    with pytest.raises(OptionError, match=message):
        ISI(layers=layers).attach(network())


def test_an_attach_that_raises_midway_leaves_no_hook():
    class Unhookable(nn.Conv2d):
        def register_forward_hook(self, *args, **kwargs):
            raise RuntimeError("no hooks")

    encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), Unhookable(2, 2, 3))
    for act in (ISI(layers="*").attach, lambda encoder: ISI(layers="*").maps(encoder, images(size=12))):
        with pytest.raises(RuntimeError, match="no hooks"):
            act(encoder)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


def test_an_encoder_without_convolutions_raises():
    with pytest.raises(OptionError, match=r"the encoder has none; its layers: .*0 \(Linear\).*remove isi"):
        ISI().attach(nn.Sequential(nn.Linear(3, 3)))


def test_a_pooling_that_follows_no_convolution_raises():
    encoder = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 1, 3))
    ISI(layers="0").attach(encoder)
    with pytest.raises(OptionError, match="'0' in `layers` must pool the output of a convolution"):
        encoder(images())

"""Maps of self-information against loops over patches, drop probabilities, and both samplers of masks."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradhomog_plugins._isi import self_information
from gradhomog_plugins._isi.drop import bernoulli, keep_probabilities, multinomial, position_probabilities
from gradhomog_plugins._isi.self_information import Patches, log_kernel_sum, neighbourhood
from gradhomog_plugins.isi import ISI


def by_loops(inputs, patches, size, radius, bandwidth):
    """Equation 9 patch by patch in NumPy, float64; positions outside the map are replaced by the nearest inside."""
    values = inputs.double().numpy()
    dims = len(size)
    shifts = list(itertools.product(range(-radius, radius + 1), repeat=dims))

    def patch(sample, place, shift):
        axes = [
            np.clip(place[a] * patches.stride[a] - patches.padding[a] + shift[a]
                    + patches.dilation[a] * np.arange(patches.kernel[a]), 0, values.shape[2 + a] - 1)
            for a in range(dims)
        ]  # fmt: skip
        return sample[np.ix_(np.arange(sample.shape[0]), *axes)]

    found = np.zeros((len(values), *size))
    for n, sample in enumerate(values):
        distances = {
            place: [((patch(sample, place, (0,) * dims) - patch(sample, place, s)) ** 2).sum() for s in shifts]
            for place in np.ndindex(*size)
        }
        mean = np.mean(list(distances.values()))
        for place, squares in distances.items():
            found[n][place] = np.log(np.exp(-np.array(squares) / (2 * bandwidth**2 * mean)).sum())
    return torch.as_tensor(found)


def layer_of(dims, **options):
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](2, 1, **options)


def of_layer(layer, inputs, radius, bandwidth=1.0, **more):
    size = tuple(layer(inputs.float()).shape[2:])
    patches = Patches(layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return log_kernel_sum(inputs, patches, size, radius, bandwidth, **more), patches, size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "radius", "options"),
    [
        ((20,), 2, {"kernel_size": 4, "stride": 3, "padding": 2, "dilation": 2}),
        ((8, 6), 3, {"kernel_size": 1}),
        ((9, 8), 1, {"kernel_size": 3, "stride": 2}),  # the last column is not read
        ((7, 9), 2, {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 1), "dilation": (2, 1)}),
        ((3, 2), 4, {"kernel_size": 5, "padding": 2}),  # patch and neighbourhood larger than the map
        ((1, 1), 3, {"kernel_size": 3, "padding": 1}),
        ((2, 2), 5, {"kernel_size": 1, "stride": 9, "padding": 4}),  # a patch entirely in the padding
        ((4, 5, 4), 2, {"kernel_size": (1, 2, 3), "stride": (1, 2, 1), "padding": (0, 1, 2)}),
    ],
)
def test_the_map_is_that_of_loops_over_all_patches(shape, radius, options):
    inputs = torch.randn(2, 2, *shape, generator=torch.Generator().manual_seed(0)).cumsum(-1)
    found, patches, size = of_layer(layer_of(len(shape), **options), inputs, radius, 0.8)
    if math.prod(shape) == 1:
        assert torch.equal(found, torch.full_like(found, found[0].flatten()[0]))
    else:
        expected = by_loops(inputs, patches, size, radius, 0.8)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-6)


def test_blocks_of_the_batch_change_nothing(monkeypatch):
    inputs = torch.randn(7, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    layer = layer_of(2, kernel_size=3, padding=1)
    whole = of_layer(layer, inputs, 3)[0]
    monkeypatch.setattr(self_information, "BLOCK", 2 * 26 * 17 * 17)
    torch.testing.assert_close(of_layer(layer, inputs, 3)[0], whole, rtol=0, atol=1e-6)


@given(
    seed=st.integers(0, 100),
    factor=st.sampled_from([1e-30, 1e-9, -1.0, 3.0, 1e12, 1e30]),
    offset=st.sampled_from([0.0, 1.0, -1e4]),
)
def test_a_factor_and_an_offset_of_a_sample_change_nothing(seed, factor, offset):
    inputs = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    layer = layer_of(2, kernel_size=3, padding=1)
    moved = inputs.clone()
    moved[1] = moved[1] * factor + offset * abs(factor)
    torch.testing.assert_close(of_layer(layer, moved, 2)[0], of_layer(layer, inputs, 2)[0], rtol=0, atol=5e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_gives_the_map_of_float32(dtype):
    inputs = torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    layer = layer_of(2, kernel_size=3, padding=1)
    found, exact = of_layer(layer, inputs, 3)[0], of_layer(layer, inputs.float(), 3)[0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-6)


def test_sampled_neighbours_count_for_all_of_them():
    inputs = torch.randn(2, 2, 10, 10, generator=torch.Generator().manual_seed(0)).cumsum(2)
    layer, every = layer_of(2, kernel_size=3, padding=1), neighbourhood(2, 2)
    exact = of_layer(layer, inputs, 2)[0]
    torch.testing.assert_close(of_layer(layer, inputs, 2, shifts=every[::-1])[0], exact, rtol=0, atol=2e-6)
    draws = torch.stack([of_layer(layer, inputs, 2, shifts=every[start::4])[0].exp() for start in range(4)])
    torch.testing.assert_close(draws.mean(0).log(), exact, rtol=0, atol=0.1)


temperatures = st.sampled_from([0.0, 1e-300, 1e-40, 1e-6, 0.1, 1.0, 1e6, 1e300, math.inf])


def drop_map(inputs, channels=1, **options):
    layer = nn.Sequential(nn.Conv2d(inputs.shape[1], channels, 3, padding=1))
    return ISI(layers=1, **options).maps(layer, inputs)["0"]


@given(temperatures)
def test_a_constant_image_is_plain_dropout(temperature):
    found = drop_map(torch.full((2, 3, 7, 6), 0.7), rate=0.3, temperature=temperature)
    torch.testing.assert_close(found, torch.full_like(found, 0.3), rtol=0, atol=1e-6)


@given(temperatures, st.floats(0, 0.999), st.integers(0, 50), st.sampled_from(["bernoulli", "multinomial"]))
def test_probabilities_are_finite_between_0_and_1_and_not_above_the_rate_on_average(temperature, rate, seed, sampling):
    inputs = torch.randn(2, 1, 7, 6, generator=torch.Generator().manual_seed(seed))
    found = drop_map(inputs, rate=rate, temperature=temperature, sampling=sampling)
    assert bool(((found >= 0) & (found <= 1)).all())
    if sampling == "bernoulli":  # P is concave in the share
        assert float(found.flatten(1).mean(1).max()) <= rate + 1e-5


@given(st.integers(0, 100))
def test_a_lower_temperature_spreads_shares_more_and_zero_is_the_limit(seed):
    log_s = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(seed))
    spread = [float(position_probabilities(log_s, t).std()) for t in (0.0, 0.1, 0.5, 2.0, 1e5)]
    assert spread == sorted(spread, reverse=True)
    zero = position_probabilities(log_s, 0.0)
    torch.testing.assert_close(position_probabilities(log_s, 1e-5), zero, rtol=0, atol=1e-6)
    assert torch.equal(zero.flatten(1).argmax(1), log_s.flatten(1).argmax(1))


def test_at_zero_temperature_the_least_informative_positions_share_equally():
    shares = position_probabilities(torch.tensor([[1.0, 2.0, 2.0, 0.5]]), 0.0)
    assert shares.tolist() == [[0, 0.5, 0.5, 0]]
    torch.testing.assert_close(1 - keep_probabilities(shares, 0.1), torch.tensor([[0, 0.19, 0.19, 0]]))


def test_nan_values_have_equal_shares():
    assert position_probabilities(torch.tensor([[math.nan] * 4]), 0.5).tolist() == [[0.25] * 4]


def test_at_infinite_temperature_masks_are_inverted_dropout():
    layer, inputs = nn.Conv2d(2, 16, 3, padding=1), torch.randn(8, 2, 16, 16)
    isi = ISI(layers=1, rate=0.3, temperature=math.inf)
    isi.attach(layer)
    plain = layer.eval()(inputs).detach()
    dropped = layer.train()(inputs).detach()
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.7)
    assert scipy.stats.binomtest(int((~kept).sum()), kept.numel(), 0.3).pvalue > 1e-3
    counts = (~kept).sum(dim=(2, 3)).flatten().double()  # of 256 positions; with dropout they are binomial
    torch.testing.assert_close(counts.var(), torch.tensor(256 * 0.3 * 0.7).double(), rtol=0.3, atol=0)


def draws_of(sample, shape, times=40):
    total = torch.zeros(shape)
    for seed in range(times):
        mask, zeros = sample(torch.Generator().manual_seed(seed))
        assert int(zeros) == int((mask == 0).sum())
        total += (mask == 0).float().mean(1)
    return total / times


def test_each_position_is_dropped_with_its_probability_by_both_samplers():
    log_s = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    shares, one = position_probabilities(log_s, 0.7), torch.ones(2)
    keep = keep_probabilities(shares, 0.4)
    draws, channels = round(-math.log(0.6) * 30), 500
    for found, expected in (
        (draws_of(lambda g: bernoulli(keep, one, channels, torch.float32, g), (2, 6, 5)), 1 - keep),
        (draws_of(lambda g: multinomial(shares, draws, one, channels, torch.float32, g), (2, 6, 5)),
         1 - (1 - shares) ** draws),
    ):  # fmt: skip
        error = (expected * (1 - expected) / (40 * channels)).sqrt()
        assert float(((found - expected) / error).abs().max()) < 5
    # The calibration is the multinomial's marginal, up to the effect of a fixed number of draws.
    torch.testing.assert_close(1 - (1 - shares) ** draws, 1 - keep, rtol=0, atol=0.03)


def test_masks_follow_probabilities_near_zero_and_one():
    keep = torch.tensor([[1.0, 1e-9]])
    mask = bernoulli(keep, torch.ones(1), 10_000, torch.float32, torch.Generator().manual_seed(0))[0]
    assert float(mask[0, :, 0].min()) == 1
    assert float(mask[0, :, 1].sum()) <= 3

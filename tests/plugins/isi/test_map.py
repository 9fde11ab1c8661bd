"""The map of self-information against loops over patches, and its invariances."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradhomog_plugins._isi import self_information
from gradhomog_plugins._isi.self_information import Patches, log_kernel_sum, neighbourhood


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
        ((17,), 3, {"kernel_size": 3, "padding": 1}),
        ((20,), 2, {"kernel_size": 4, "stride": 3, "padding": 2, "dilation": 2}),
        ((6, 7), 2, {"kernel_size": 3, "padding": 1}),
        ((8, 6), 3, {"kernel_size": 1}),
        ((9, 8), 1, {"kernel_size": 3, "stride": 2}),  # the last column is not read
        ((7, 9), 2, {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 1), "dilation": (2, 1)}),
        ((3, 2), 4, {"kernel_size": 5, "padding": 2}),  # patch and neighbourhood larger than the map
        ((1, 1), 3, {"kernel_size": 3, "padding": 1}),
        ((2, 2), 5, {"kernel_size": 1, "stride": 9, "padding": 4}),  # a patch entirely in the padding
        ((4, 3, 5), 1, {"kernel_size": 3, "padding": 1}),
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


@given(value=st.floats(-(2.0**100), 2.0**100, width=32), bandwidth=st.sampled_from([1e-30, 1.0, 1e30]))
def test_a_constant_sample_has_a_constant_map(value, bandwidth):
    found = of_layer(layer_of(2, kernel_size=3, padding=1), torch.full((1, 2, 5, 6), value), 3, bandwidth)[0]
    torch.testing.assert_close(found, torch.full_like(found, math.log(49)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_gives_the_map_of_float32(dtype):
    inputs = torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    layer = layer_of(2, kernel_size=3, padding=1)
    found, exact = of_layer(layer, inputs, 3)[0], of_layer(layer, inputs.float(), 3)[0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_neighbourhood_has_all_shifts_up_to_the_radius_except_zero(dims):
    shifts = neighbourhood(2, dims)
    assert len(set(shifts)) == len(shifts) == 5**dims - 1
    assert max(map(max, shifts)) == -min(map(min, shifts)) == 2


def test_sampled_neighbours_count_for_all_of_them():
    inputs = torch.randn(2, 2, 10, 10, generator=torch.Generator().manual_seed(0)).cumsum(2)
    layer, every = layer_of(2, kernel_size=3, padding=1), neighbourhood(2, 2)
    exact = of_layer(layer, inputs, 2)[0]
    torch.testing.assert_close(of_layer(layer, inputs, 2, shifts=every[::-1])[0], exact, rtol=0, atol=2e-6)
    draws = torch.stack([of_layer(layer, inputs, 2, shifts=every[start::4])[0].exp() for start in range(4)])
    torch.testing.assert_close(draws.mean(0).log(), exact, rtol=0, atol=0.1)

"""ISI keeps the dtype of activations, and NaN and infinity in them."""

import math

import pytest
import torch
from torch import nn

from gradhomog_plugins.isi import ISI
from tests.plugins.isi.networks import attached, begin, images, network


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_output_keeps_its_dtype(dtype):
    layer = nn.Conv2d(1, 4, 3, padding=1).to(dtype)
    ISI(layers=1, rate=0.3).attach(layer)
    output = layer(images().to(dtype))
    assert output.dtype == dtype
    assert torch.isfinite(output).all()
    assert 0.2 < float((output == 0).double().mean()) < 0.4


def test_under_autocast_masks_are_kept_and_keep_the_low_precision():
    isi, encoder, x = ISI(), network(), images()
    with attached(isi, encoder) as zeros:
        begin(isi)
        with torch.autocast("cpu", torch.bfloat16):
            assert encoder[0](x).dtype == torch.bfloat16
            encoder(x).sum().backward()
        encoder(x)
    assert torch.equal(zeros[1], zeros[2])


def test_nonfinite_values_stay_nonfinite_and_change_no_others():
    for sampling in ("bernoulli", "multinomial"):
        layer, x = nn.Conv2d(1, 4, 3, padding=1), images()
        ISI(layers=1, sampling=sampling).attach(layer)
        x[1], x[2, 0, 0, 0] = math.nan, math.inf
        output = layer(x)
        assert torch.isnan(output[1]).all()
        assert not torch.isfinite(output[2]).all()
        assert torch.isfinite(output[3:]).all()

"""DropBlock: squares, their share and scale, and the DropBlock layers of resnet12."""

import numpy as np
import pytest
import torch
from torch import nn

import gradhomog_data.networks
from gradhomog import OptionError
from gradhomog_data.networks import DropBlock


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_dropped_positions_are_a_union_of_whole_squares(block):
    torch.manual_seed(block)
    dropped = (DropBlock(0.2, block)(torch.ones(4, 3, 9, 11)) == 0).numpy()
    assert 0 < dropped.mean() < 1
    for plane in dropped.reshape(-1, 9, 11):
        squares = np.lib.stride_tricks.sliding_window_view(plane, (block, block)).all((-1, -2))
        covered = np.zeros_like(plane)
        for row, column in np.argwhere(squares):
            covered[row : row + block, column : column + block] = True
        np.testing.assert_array_equal(covered, plane)


def test_positions_are_dropped_at_the_rate_of_the_formula_and_the_rest_is_scaled_to_keep_the_mean():
    torch.manual_seed(0)
    rate, block, height, width = 0.3, 3, 7, 8
    out = DropBlock(rate, block)(torch.ones(20_000, 1, height, width, dtype=torch.float64))
    gamma = rate / 9 * (7 * 8) / (5 * 6)
    share = (out == 0).double().mean(0)[0]
    assert float(share[3, 4]) == pytest.approx(1 - (1 - gamma) ** 9, abs=0.015)  # nine squares cover the middle
    assert float(share[0, 0]) == pytest.approx(gamma, abs=0.01)  # one covers a corner
    assert float(out.mean()) == pytest.approx(1, abs=1e-12)


def test_squares_are_at_most_as_large_as_the_map():
    torch.manual_seed(0)
    out = DropBlock(0.25, 5)(torch.ones(4000, 1, 2, 2))
    dropped = (out == 0).flatten(1)
    assert torch.equal(dropped.any(1), dropped.all(1))
    assert float(dropped.any(1).double().mean()) == pytest.approx(0.25, abs=0.03)


def test_evaluation_drops_nothing_and_a_mask_that_drops_everything_gives_zeros():
    maps = torch.randn(2, 3, 4, 4)
    assert torch.equal(DropBlock(0.5, 2).eval()(maps), maps)
    assert torch.equal(DropBlock(1.0, 4)(maps), torch.zeros_like(maps))


def test_each_task_of_a_vmap_has_a_different_mask():
    torch.manual_seed(0)
    out = torch.func.vmap(DropBlock(0.3, 2), randomness="different")(torch.ones(3, 2, 3, 6, 6))
    assert not torch.equal(out[0] == 0, out[1] == 0)
    torch.testing.assert_close(out.mean((1, 2, 3, 4)), torch.ones(3))


def test_resnet12_with_a_drop_rate_has_dropout_in_two_blocks_and_dropblock_in_two():
    torch.manual_seed(0)
    plain = gradhomog_data.networks.resnet12((3, 84, 84), 5, 2)[0]
    torch.manual_seed(0)
    dropping = gradhomog_data.networks.resnet12((3, 84, 84), 5, 2, drop_rate=0.1, drop_block=2)[0]
    assert [type(dropping.get_submodule(f"layer{stage}.0.drop")) for stage in range(1, 5)] == [
        nn.Dropout, nn.Dropout, DropBlock, DropBlock
    ]  # fmt: skip
    assert not [layer for layer in plain.modules() if isinstance(layer, nn.Dropout | DropBlock)]
    images = torch.randn(3, 3, 84, 84)
    assert torch.equal(dropping.eval()(images), plain.eval()(images))
    assert not torch.equal(dropping.train()(images), plain.train()(images))
    assert list(plain.state_dict()) == list(dropping.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_rate": 1.0}, r"`drop_rate` must be a number ≥ 0 and < 1; got 1.0"),
        ({"drop_rate": float("nan")}, r"`drop_rate` must be .* got nan"),
        ({"drop_block": 0}, r"resnet12: `drop_block` must be an integer ≥ 1; got 0"),
    ],
)
def test_rates_and_sides_out_of_range_raise(options, message):
    with pytest.raises(OptionError, match=message):
        gradhomog_data.networks.resnet12((3, 32, 32), 5, 2, **options)

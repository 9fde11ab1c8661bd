"""Inputs of the benchmarks: equal in every call, different in every round, the same numbers in every dtype."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks import backward_inputs, combine_inputs, maml_inputs
from tests.benchmarks.combine_inputs import Source
from tests.benchmarks.maml_inputs import to_channels_last
from tests.benchmarks.rotation_inputs import draw

VECTORS, MULTI_TASK_IMAGES = (3, 4, 6), (2, 3, 16, 4)
SINUSOIDS, FEW_SHOT_IMAGES = (3, 4), (2, 3, 16, 4)
SETTINGS = [
    (backward_inputs.Setting, VECTORS), (backward_inputs.Setting, MULTI_TASK_IMAGES),
    (maml_inputs.Setting, SINUSOIDS), (maml_inputs.Setting, FEW_SHOT_IMAGES),
]  # fmt: skip
IDS = ["vectors", "images of several tasks", "sinusoids", "few-shot images"]

every = pytest.mark.parametrize(("setting", "shape"), SETTINGS, ids=IDS)


def tensors(batch):
    return [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]


SOURCES = {
    **{name: setting(shape).batch for name, (setting, shape) in zip(IDS, SETTINGS, strict=True)},
    "features": lambda number: draw((2, 3, 4), number),
    "gradients": lambda number: Source(4, 100)(number),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_inputs_of_a_round_are_the_same_every_time_and_those_of_two_rounds_differ(source):
    one, again, other = (tensors(source(number)) for number in (3, 3, 4))
    assert len(one) >= 2
    assert all(map(torch.equal, one, again))
    assert not all(map(torch.equal, one, other))


@every
def test_inputs_and_networks_have_the_same_numbers_in_another_dtype(setting, shape):
    single, double = setting(shape), setting(shape, torch.float64)
    for one, other in zip(tensors(single.batch(3)), tensors(double.batch(3)), strict=True):
        assert torch.equal(one.double(), other.double())
        assert other.dtype in (torch.float64, torch.int64)
    for one, other in zip(single.network().parameters(), double.network().parameters(), strict=True):
        assert torch.equal(one.double(), other)


def test_images_have_the_shapes_of_their_form():
    several = backward_inputs.Setting(MULTI_TASK_IMAGES).batch(0)
    assert several.inputs.shape == (25, 3, 16, 16)
    assert several.targets.shape == (2, 25, 1)
    few = maml_inputs.Setting(FEW_SHOT_IMAGES).batch(0)
    assert few.support_x.shape == (2, 25, 3, 16, 16)
    assert few.query_y[1].bincount().tolist() == [15] * 5


def test_networks_of_several_heads_have_the_documented_sizes_and_no_running_statistics():
    mlp = backward_inputs.Setting((2, 64, 256)).network()
    conv4 = backward_inputs.Setting((2, 3, 32, 32)).network()
    assert sum(parameter.numel() for parameter in mlp.encoder.parameters()) == 65 * 256 + 257 * 256 + 257 * 128
    assert conv4.encoder(torch.zeros(1, 3, 32, 32)).shape == (1, 128)
    assert len([layer for layer in conv4.encoder if isinstance(layer, torch.nn.GroupNorm)]) == 4
    assert not [*mlp.buffers(), *conv4.buffers()]


def test_channels_last_changes_the_layout_but_not_the_numbers():
    batch = maml_inputs.Setting(FEW_SHOT_IMAGES, torch.float64).batch(0)
    converted = to_channels_last(batch)
    assert torch.equal(converted.support_x, batch.support_x)
    assert converted.support_x[0].is_contiguous(memory_format=torch.channels_last)
    assert not converted.support_x[0].is_contiguous()


def test_gradients_overwrite_those_of_the_previous_round():
    source = Source(4, 100)
    first, second = source(3), source(4)
    assert isinstance(first, combine_inputs.Gradients)
    assert second.rows.data_ptr() == first.rows.data_ptr()
    assert (first.losses > 0).all()


def test_gradients_agree_and_conflict_and_have_different_norms():
    source = Source(4, 2000)
    found = [source(number).rows.double() for number in range(10)]
    cosines = torch.stack([torch.corrcoef(rows)[0, 1:] for rows in found])
    assert cosines.min() < -0.4
    assert cosines.max() > 0.4
    norms = torch.stack([rows.norm(dim=1) for rows in found])
    assert norms.max() > 2 * norms.min()

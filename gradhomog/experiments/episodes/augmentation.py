"""Augmentation of training images: random resized crop, color jitter and horizontal flip, without torchvision."""

import math

import torch
from torch import Tensor

_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in Pillow's mode L


def to_gray(images: Tensor) -> Tensor:
    """Return the luminance `[n, 1, height, width]` of images in [-1, 1]; images of one channel are unchanged."""
    if images.shape[1] == 1:
        return images
    weights = images.new_tensor(_LUMINANCE).reshape(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True).clamp(-1, 1)  # the weights sum to 1 up to rounding


AREA = (0.08, 1.0)
"""Range of the area of a crop, as a share of the image; uniform."""

RATIO = (3 / 4, 4 / 3)
"""Range of width / height of a crop; uniform in the logarithm."""

JITTER = 0.4
"""Strength of brightness, contrast and color: factors are uniform in 1 ± JITTER."""

_ATTEMPTS = 10


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop, jitter and flip each image: x ↦ flip(color(contrast(brightness(resize(crop(x)))))).

    Every image has its own random numbers: a crop of area 0.08 to 1 and ratio 3/4 to 4/3, resized to the input's size
    (bilinear), then Pillow's `ImageEnhance` with factors in 0.6..1.4, then a flip with probability 1/2.

    Args:
        images: `[n, channels, height, width]` in [-1, 1], one or three channels.
        generator: on the CPU; the result is a function of its state.

    Returns a new tensor of the same shape, dtype and range.

    Source: the code of Chen et al. 2019 (arXiv 1904.04232), `data/datamgr.py` and `data/additional_transforms.py`,
    which all cross-domain papers after it use; the crop is torchvision's `RandomResizedCrop`.

    Deviations: (1) crops are taken from the image at the network's size, not from the original picture, so small crops
    are blurred; (2) pixels are not rounded to bytes between the steps; (3) the mean of the contrast is not rounded;
    (4) if ten draws of a crop exceed the image, the whole image is used, instead of its largest part with an allowed
    ratio (for square images they are the same).

    >>> images = torch.rand(2, 3, 8, 8) * 2 - 1
    >>> augment(images, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    count = len(images)
    crops = _draw_crops(count, images.shape[-1] / images.shape[-2], generator)
    flips = torch.rand(count, generator=generator) < 0.5
    factors = 1 + JITTER * (2 * torch.rand(3, count, 1, 1, 1, generator=generator) - 1)
    cropped = resample(images, crops, flips)  # a flip commutes with the jitter
    return jitter(cropped, *factors.to(images))


def resample(images: Tensor, crops: Tensor, flips: Tensor) -> Tensor:
    """Resize crops `[n, 4]` (left, top, width, height as shares of the image) to the images' size; flip some."""
    left, top, width, height = crops.to(images).unbind(1)
    zero = torch.zeros_like(left)
    sign = torch.where(flips.to(left.device), -1.0, 1.0).to(left)
    # `affine_grid` maps outputs in [-1, 1]² to inputs in [-1, 1]².
    theta = torch.stack([sign * width, zero, 2 * left + width - 1, zero, height, 2 * top + height - 1], dim=1).reshape(
        -1, 2, 3
    )
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter(images: Tensor, brightness: Tensor, contrast: Tensor, color: Tensor) -> Tensor:
    """Blend with black, with the mean gray value and with the gray image, in this order, each clamped to [-1, 1].

    Factors are `[n, 1, 1, 1]`: 0 is the other image alone, 1 is the image itself.
    """
    images = ((images + 1) * brightness - 1).clamp(-1, 1)
    mean = to_gray(images).mean(dim=(1, 2, 3), keepdim=True)
    images = (mean + contrast * (images - mean)).clamp(-1, 1)
    gray = to_gray(images)
    return (gray + color * (images - gray)).clamp(-1, 1)


def _draw_crops(count: int, aspect: float, generator: torch.Generator) -> Tensor:
    """Draw crops `[count, 4]` within images of width / height `aspect`; the whole image after ten failed attempts."""
    area, ratio, x, y = torch.rand(4, count, _ATTEMPTS, generator=generator)
    area = AREA[0] + (AREA[1] - AREA[0]) * area
    ratio = torch.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * ratio) / aspect
    width, height = (area * ratio).sqrt(), (area / ratio).sqrt()
    fits = (width <= 1) & (height <= 1)
    first = fits.int().argmax(dim=1, keepdim=True)
    crops = torch.stack([x * (1 - width), y * (1 - height), width, height], dim=2)
    chosen = crops.gather(1, first[..., None].expand(-1, -1, 4)).squeeze(1)
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0])
    return torch.where(fits.any(dim=1, keepdim=True), chosen, whole)

"""Luminance of colour images."""

from __future__ import annotations

from torch import Tensor

_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in Pillow's mode L


def to_gray(images: Tensor) -> Tensor:
    """Return the luminance `[n, 1, height, width]` of images in [-1, 1]; images of one channel are unchanged."""
    if images.shape[1] == 1:
        return images
    weights = images.new_tensor(_LUMINANCE).reshape(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True).clamp(-1, 1)  # the weights sum to 1 up to rounding

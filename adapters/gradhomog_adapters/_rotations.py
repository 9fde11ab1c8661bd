"""Rotated copies of the images of a task, and the losses that compare them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradhomog import DataError


def rotate_images(x: Tensor, turns: Sequence[int]) -> Tensor:
    """Concatenate copies of images `[n, C, s, s]`, each rotated by a number of quarter turns: `[len(turns) · n, …]`.

    Raises:
        DataError: the inputs are not square images.
    """
    if x.dim() != 4 or x.shape[-1] != x.shape[-2]:
        raise DataError(
            "images of tasks must be square, [channels, size, size], because they are rotated by 90 degrees; got "
            f"inputs of shape {list(x.shape[1:])}. Resize the images."
        )
    return torch.cat([torch.rot90(x, turn, (-2, -1)) for turn in turns])


def rotation_loss(outputs: Tensor) -> Tensor:
    """Mean binary cross entropy of four outputs, each of which predicts if an image has been rotated by r · 90 degrees.

    Args:
        outputs: `[4 n, 4]`, for n images that are not rotated, then for those rotated once, twice and three times.
    """
    targets = torch.eye(4, dtype=outputs.dtype, device=outputs.device).repeat_interleave(len(outputs) // 4, 0)
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · mean KL(softmax(teacher/T) ‖ softmax(student/T)), for outputs `[n, classes]`.

    T² makes gradients independent of T to first order, as in Hinton et al. 2015, arXiv 1503.02531, section 2.
    """
    log_p, log_q = (torch.log_softmax(outputs / temperature, 1) for outputs in (teacher, student))
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(1).mean()


def mean_distance(one: Tensor, two: Tensor) -> Tensor:
    """Mean ‖one_i − two_i‖ over rows; the derivative of equal rows is zero."""
    distance: Tensor = torch.linalg.vector_norm(one - two, dim=1).mean()
    return distance

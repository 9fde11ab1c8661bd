"""Other implementations of self-information drop-out: the form of the published code, and a form with `unfold`.

Both compute, for each position p of a convolution's output, the kernel sum
S(p) = Σ_δ exp(−‖patch(p) − patch(p + δ)‖² / 2h²m) over all shifts δ in [−radius, radius]², with the mean squared
distance m over the batch and h = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def concatenated_differences(x: Tensor, radius: int, kernel: int, padding: int) -> Tensor:
    """S, `[n, height, width]`, in the form of the code published with InfoDrop (Shi et al. 2020, few_shot/backbone.py).

    The differences between the padded input `[n, channels, height, width]` and each of its shifts are concatenated,
    squared, and summed over channels; then follow a convolution with ones (sum over the patch), exp, and the sum over
    shifts.

    Deviations from that code: 1. all shifts are used instead of nine random shifts; 2. differences are squared in place
    and intermediate tensors freed instead of keeping three copies, so this form needs less memory.
    """
    padded, height, width = _padded(x, radius, padding)
    center = _shifted(padded, radius, radius, height, width)
    span = range(2 * radius + 1)
    differences = torch.cat([center - _shifted(padded, i, j, height, width) for i in span for j in span], dim=1)
    shifts = len(span) ** 2
    squares = differences.square_().view(-1, x.shape[1], height, width).sum(dim=1).view(len(x), shifts, height, width)
    del differences
    ones = x.new_ones(shifts, 1, kernel, kernel)
    distances = functional.conv2d(squares, ones, groups=shifts)
    return torch.exp(-distances / distances.mean() / 2).sum(dim=1)


def unfolded_patches(x: Tensor, radius: int, kernel: int, padding: int) -> Tensor:
    """S, `[n, height, width]`, from patches extracted by `unfold`: the distances of all patches for each shift."""
    padded, height, width = _padded(x, radius, padding)
    patches = functional.unfold(_shifted(padded, radius, radius, height, width), kernel)
    shifted_distances = []
    for i in range(2 * radius + 1):
        for j in range(2 * radius + 1):
            other = functional.unfold(_shifted(padded, i, j, height, width), kernel)
            shifted_distances.append((patches - other).square_().sum(dim=1))
    distances = torch.stack(shifted_distances, dim=1)
    sums = torch.exp(-distances / distances.mean() / 2).sum(dim=1)
    return sums.view(len(x), height - kernel + 1, width - kernel + 1)


def drop(outputs: Tensor, sums: Tensor, rate: float, temperature: float, random: torch.Generator) -> Tensor:
    """Outputs `[n, channels, height, width]`, dropped (set to 0) independently per position and channel.

    The drop probability is 1 − (1 − rate)^(positions · p), with the softmax p over positions of (log S) / temperature.
    """
    share = (sums.log() / temperature).flatten(1).softmax(dim=1).view_as(sums)
    probability = 1 - (1 - rate) ** (share * sums[0].numel())
    return outputs * (torch.rand(outputs.shape, generator=random) >= probability[:, None])


def _padded(x: Tensor, radius: int, padding: int) -> tuple[Tensor, int, int]:
    """The input zero-padded for patches and shifts, and its height and width if padded for patches only."""
    height, width = x.shape[-2] + 2 * padding, x.shape[-1] + 2 * padding
    return functional.pad(x, (radius + padding,) * 4), height, width


def _shifted(padded: Tensor, i: int, j: int, height: int, width: int) -> Tensor:
    return padded[:, :, i : i + height, j : j + width]

"""The kernel sum of self-information over the neighbours of each patch of a map; patches are not materialized."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog_plugins._columns import wide_dtype

Shift = tuple[int, ...]

# Floats of padded input and distances per block, about 20 MB in all. Measured over the layers of four-block networks
# on one thread: a quarter of it takes 1.0 to 1.8 times as long; twice as many take 0.9 to 2.5 times as long.
BLOCK = 1 << 20


@dataclass(frozen=True)
class Patches:
    """The geometry of the patches of a layer, one number per spatial dimension; `padding` is that before the map."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def neighbourhood(radius: int, dims: int) -> list[Shift]:
    """Return the (2·radius + 1)^dims − 1 shifts from a patch to its neighbours, without the patch itself."""
    return [shift for shift in itertools.product(range(-radius, radius + 1), repeat=dims) if any(shift)]


def log_kernel_sum(
    inputs: Tensor,
    patches: Patches,
    size: Sequence[int],
    radius: int,
    bandwidth: float,
    shifts: Sequence[Shift] | None = None,
) -> Tensor:
    """Return log S, float32 `[n, *size]`, for inputs `[n, channels, *map]`: the higher, the less informative.

    S(p) = Σ_{p'} exp(−‖p − p'‖² / (2 h² m)),  p' the patches at all shifts of up to `radius` per dimension, p included,
    m = mean of ‖p − p'‖² over all p and p' of a sample

    The map is padded by its border. log S is between 0 and the log of the number of neighbours; constant inputs give a
    constant. A factor and an offset common to a sample do not change it.

    Args:
        size: the size of the layer's output.
        bandwidth: h > 0, relative to the root mean square distance.
        shifts: compare with these neighbours only; their terms are scaled up to estimate the sum over all neighbours.

    Cost: a subtraction, a product and a sum per input element and pair of opposite shifts; memory for one block.
    """
    shifts = neighbourhood(radius, len(size)) if shifts is None else shifts
    padded = [
        (outputs - 1) * stride + dilation * (kernel - 1) + 1 + 2 * radius
        for outputs, kernel, stride, dilation in zip(
            size, patches.kernel, patches.stride, patches.dilation, strict=True
        )
    ]
    block = max(1, BLOCK // ((inputs.shape[1] + len(shifts) // 2) * math.prod(padded)))
    log_s = inputs.new_empty(len(inputs), *size, dtype=torch.float32)
    for start in range(0, len(inputs), block):
        part = _padded(
            _normalized(inputs[start : start + block]), [before + radius for before in patches.padding], padded
        )
        log_s[start : start + block] = _of_block(part, patches, size, radius, bandwidth, shifts)
    return log_s


def _normalized(inputs: Tensor) -> Tensor:
    """Scale each sample to [0, 1], so that no square over- or underflows; in float64 until the offset is removed."""
    part = inputs.to(wide_dtype(inputs))
    dims = list(range(1, part.dim()))
    least = part.amin(dims, keepdim=True)  # amin and amax take a twentieth of the time of aminmax (PyTorch 2.13, CPU)
    span = part.amax(dims, keepdim=True) - least
    return ((part - least) / torch.where(span > 0, span, torch.ones_like(span))).float()


def _padded(inputs: Tensor, before: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Repeat the border of the map, `before` it and after it up to a length; remove values that are not read."""
    margins: list[int] = []
    for axis, (lead, length) in enumerate(zip(before, lengths, strict=True), start=2):
        inputs = inputs.narrow(axis, 0, min(inputs.shape[axis], max(1, length - lead)))
        margins = [lead, max(0, length - lead - inputs.shape[axis]), *margins]
    padded = torch.nn.functional.pad(inputs, margins, mode="replicate")
    for axis, length in enumerate(lengths, start=2):
        padded = padded.narrow(axis, 0, length)
    return padded.contiguous()


def _of_block(
    inputs: Tensor, patches: Patches, size: Sequence[int], radius: int, bandwidth: float, shifts: Sequence[Shift]
) -> Tensor:
    # The padded map is treated as one long row: a shift in several dimensions is then one offset, and all loops are
    # long and contiguous. Values that wrap around are in the margin, which is not read.
    n, steps = len(inputs), inputs[0, 0].stride()  # offset of the next position in each dimension
    offsets = [sum(d * step for d, step in zip(shift, steps, strict=True)) for shift in shifts]
    halves = {offset: place for place, offset in enumerate(sorted({abs(offset) for offset in offsets}))}
    start = radius * sum(steps)  # of the patches of the output; also the largest offset
    distances = _patch_distances(inputs.flatten(2), list(halves), start)
    for kernel, dilation, step in zip(patches.kernel, patches.dilation, steps, strict=True):
        distances = _box(distances, kernel, dilation * step)
    # D_{−δ}(p) = D_δ(p − δ): the two halves of the neighbourhood have the same distances, at two offsets.
    span = distances.shape[2] - start
    per_offset, per_sample, _ = distances.stride()
    strides = [span, *(stride * step for stride, step in zip(patches.stride, steps, strict=True))]

    def sum_of_neighbours() -> Tensor:
        total = distances.new_zeros(n, span)
        for sign in (1, -1):
            for offset, count in _runs([abs(offset) for offset in offsets if offset * sign > 0]):
                place = halves[offset] * per_offset + start - (offset if sign < 0 else 0)
                windows = (per_offset - (sign < 0), per_sample, 1)
                total += distances.as_strided((count, n, span), windows, place).sum(0)
        return total.as_strided((n, *size), strides)

    neighbours = (2 * radius + 1) ** len(size)
    each = (neighbours - 1) / len(shifts)
    mean = sum_of_neighbours().flatten(1).mean(1) * (each / neighbours)
    # A constant sample has mean 0 and distances 0; the bound avoids 0 · ∞ for tiny bandwidths.
    factor = torch.where(mean > 0, -0.5 / bandwidth**2 / mean, torch.zeros_like(mean))
    distances.mul_(factor.clamp_min(torch.finfo(torch.float32).min).view(1, n, 1)).exp_()
    return sum_of_neighbours().mul_(each).add_(1).log_()


def _patch_distances(flat: Tensor, offsets: Sequence[int], largest: int) -> Tensor:
    """Return ‖x(p + offset) − x(p)‖² for rows x `[n, channels, positions]`: `[offsets, n, positions]`."""
    n, channels, positions = flat.shape
    length = positions - largest
    distances = flat.new_empty(len(offsets), n, length)
    buffer = flat.new_empty(n, channels, length) if channels > 1 else None
    for place, offset in enumerate(offsets):
        # (a − b)² in one pass; `torch.nn.functional.mse_loss` has no `out`.
        squares = distances[place, :, None] if buffer is None else buffer
        torch.ops.aten.mse_loss.out(flat[:, :, offset : offset + length], flat[:, :, :length], 0, out=squares)
        if buffer is not None:
            torch.sum(buffer, 1, out=distances[place])
    return distances


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first number and the length of each run of consecutive numbers."""
    ordered = sorted(numbers)
    firsts = [place for place, number in enumerate(ordered) if place == 0 or number != ordered[place - 1] + 1]
    return [(ordered[first], end - first) for first, end in zip(firsts, [*firsts[1:], len(ordered)], strict=True)]


def _box(values: Tensor, kernel: int, step: int) -> Tensor:
    """Return sums of `kernel` values at distances of `step` along the last dimension."""
    if kernel == 1:
        return values
    length = values.shape[-1] - (kernel - 1) * step
    total = values[..., :length] + values[..., step : step + length]
    for index in range(2, kernel):
        total += values[..., index * step : index * step + length]
    return total

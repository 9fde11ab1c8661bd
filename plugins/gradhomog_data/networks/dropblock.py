"""DropBlock: dropout of squares of a feature map, because neighbours reveal the value of a single dropped position."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DropBlock(nn.Module):
    """Drop squares of side `block` from maps `[n, maps, h, w]` in training, and scale the remaining values.

    Seeds are drawn at positions where a whole square fits, each with probability

        γ = rate / b² · h w / ((h − b + 1) (w − b + 1)),

    and every seed drops its square. The remaining values are divided by the share of positions that are kept
    (Ghiasi et al. 2018, eq. 1 and algorithm 1). The mask is drawn from PyTorch's global generator, like that of
    `torch.nn.Dropout`, and `torch.func.vmap` needs `randomness="different"` for it. For a fixed mask the layer is
    linear in the inputs, and it is differentiable any number of times. It differs from the code of Lee et al. 2019:
    1. squares are at most as large as the map, as in the code of Ghiasi et al., so that small images work; 2. a mask
    that drops everything gives 0, not NaN.

    Args:
        rate: share of the positions to drop, in 0..1; overlapping squares drop slightly fewer.
        block: side of the squares, >= 1.

    >>> DropBlock(0.1, 5).eval()(torch.ones(1, 1, 5, 5)).sum()
    tensor(25.)
    """

    def __init__(self, rate: float, block: int) -> None:
        super().__init__()
        self.rate, self.block = rate, block

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return inputs
        *batch, height, width = inputs.shape
        block = min(self.block, height, width)
        rows, columns = height - block + 1, width - block + 1
        gamma = self.rate / block**2 * (height * width) / (rows * columns)
        seeds = (torch.rand(*batch, rows, columns, device=inputs.device) < gamma).to(inputs.dtype)
        kept = 1 - functional.max_pool2d(functional.pad(seeds, [block - 1] * 4), block, stride=1)
        return inputs * kept * (kept.numel() / kept.sum().clamp(min=1))

    def extra_repr(self) -> str:
        return f"rate={self.rate}, block={self.block}"

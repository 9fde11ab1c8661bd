"""A network whose output is a quadratic form of its parameters, for closed forms of inner steps."""

from __future__ import annotations

import torch
from torch import nn


class Point(nn.Module):
    """Return ½ w·X w, shape `[1, 1]`, for an input matrix X `[params, params]`; w `[params]` is random."""

    def __init__(self, params: int, generator: torch.Generator) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(params, generator=generator, dtype=torch.float64))

    def forward(self, x):
        return (self.w @ x @ self.w / 2)[None, None]

"""A network whose output is a quadratic form of its parameters, so that its inner steps have closed forms."""

from __future__ import annotations

import torch
from torch import nn


class Point(nn.Module):
    """½ w·X w of an input matrix X `[params, params]`, `[1, 1]`; w `[params]` is drawn from the generator."""

    def __init__(self, params: int, generator: torch.Generator) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(params, generator=generator, dtype=torch.float64))

    def forward(self, x):
        return (self.w @ x @ self.w / 2)[None, None]

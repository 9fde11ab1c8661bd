"""Warn of momentum in the optimizer of a framework if a homogenizer averages rows over steps."""

from __future__ import annotations

import warnings

import torch

from gradhomog import MomentumWarning, Pipeline


def warn_of_momentum(optimizer: torch.optim.Optimizer, pipe: Pipeline) -> None:
    """Warn if the optimizer averages directions, although a homogenizer such as `tracked` averages their rows."""
    if not pipe.stages.choosing:
        return
    factors = [group.get("momentum", group.get("betas", (0.0,))[0]) for group in optimizer.param_groups]
    if factor := max(factors):
        warnings.warn(
            f"{pipe.stages.choosing[0].selector} averages rows over steps, and {type(optimizer).__name__} averages its "
            f"direction again with the factor {factor:g}. Use betas=(0.0, 0.999), or momentum=0.",
            MomentumWarning,
            stacklevel=3,
        )

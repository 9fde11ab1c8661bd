"""Parameters and gradients of the models of every host, as vectors."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def parameters(module: nn.Module) -> Tensor:
    """Return a copy of all parameters."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).clone()


def rows(losses: Iterable[Tensor], module: nn.Module) -> Tensor:
    """Return the gradients of the losses, `[losses, params]`."""
    shared = [*module.parameters()]
    found = [torch.autograd.grad(loss, shared, retain_graph=True, materialize_grads=True) for loss in losses]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in found])

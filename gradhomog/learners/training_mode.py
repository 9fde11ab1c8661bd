"""Context managers for the mode and the buffers of modules."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def training_mode(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    """Set all submodules to one mode within the context; afterwards restore the previous mode of each."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for part, _ in before:
            part.training = training
        yield
    finally:
        for part, was in before:
            part.training = was


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the buffers of a module, such as running statistics, after the context."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
